"""spillway on Ray Serve: the gateway, the pools of engine replicas, and the host that carries out effects.

Rooms:
    adapters: LoRA adapters of a model: which there are, and how all replicas and gateways come to know of another.
    configuration: what ``args`` say of one model or several, and what of it may change while gateways run.
    coordination: what gateways tell the load coordinator of their load, and what they hear from it.
    dashboards: dashboards for Grafana and alert rules for Prometheus.
    data_plane: one connection for each pair of a gateway and a replica, and what goes over it.
    export: where counts go: to all gateways' page, to Ray's metrics, to the live page.
    front_end: vLLM's own OpenAI layer over a gateway's dispatcher, for what ``openai`` does not serve.
    gateway: the deployment that clients talk to: its routes, the host of its dispatcher, and how answers leave.
    http: how requests come in: the routes that tokens go out through, straight from the parser, and a port of its own.
    listener: the socket that the gateways of a node accept from, where Serve runs no proxy.
    local: where a deployment that the launcher runs on this machine has its files and its ports.
    openai: the OpenAI API: requests, responses, errors, and whose they are.
    reference: the pages of ``docs/reference``, written from the code that they describe: ``python -m
        deployments.reference``.
    ray_llm: configurations of Ray Serve LLM, as this project serves them.
    replica: the deployment that runs one engine.
    roll: a deployment that the launcher runs has its engines replaced, and goes back where users suffer.
    scaling: how many replicas pools have: one actor for all gateways asks the policy and has Serve resize them.
    serve_router: balancers of this project behind any Ray Serve deployment.
    telemetry: what a gateway counts and measures.
    tenants: who may use a deployment, by keys or an identity provider's tokens, what each may do, and who did what.
    tokenizing: prompts to token ids: long ones in a process beside the gateway, tenant by tenant.
    wire: between a gateway and its replicas: messages, routers, and Serve's internals.
"""
