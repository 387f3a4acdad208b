# `make` lists what there is. Everything runs in .venv, which is made and brought up to date when it is needed.

VENV   := .venv
PYTHON := $(VENV)/bin/python
LOCK   := requirements-cpu.lock
WITHOUT_HASHES := .ci/without-hashes.txt
MODEL  := .models/tiny-llama
RERANKER := .models/tiny-reranker
SCALING := scale-answers scale-cold scale-crowd scale-diurnal scale-lengths scale-roles scale-slow-engines scale-steady scale-warm scale-zero
SHEDDING := black-friday degraded metastable mixed-deadlines shed-alone shed-coordinator-lost shed-deaf-clients shed-sessions shed-single shed-step
HEDGING := hedge-healthy hedge-high-load hedge-ragged hedge-slow-replicas hedge-tied
RECORDED := azure-conversations
# The simulator is compiled for what simulates for minutes, where there is a C compiler: the same results in a third of
# the time. COMPILED= runs it as it is.
COMPILED := $(if $(shell command -v gcc),--compiled)
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
export HF_HUB_OFFLINE := 1
# Ray starts a process for each replica: without bytecode on the disk each would compile all modules anew, for a second.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install model serve serve-unified serve-emulated smoke bench bench-router bench-lanes bench-decisions overload \
        overload-vllm hedging-vllm coordination loadtest loadtest-witness fidelity scenarios scaling shedding hedging lab composition bursts-vllm \
        chaos chaos-vllm soak adversary ingress four-gateways autoscale what-binds plan sim-bench length-report calibrate reference check test test-openai proofs proof-tests lock audit clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## the environment (.venv), about 4 GB

$(VENV)/.installed: $(LOCK) $(WITHOUT_HASHES)
	@echo "[1/3] environment: $(VENV)"
	@test -x $(PYTHON) || $${BASE_PYTHON:-python3} -m venv $(VENV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "spillway needs Python 3.11 or newer; set BASE_PYTHON to one and run 'make clean'"; exit 1; }
	@echo "[2/3] packages: $$(grep -c '^[a-z].*==' $(LOCK)) at the versions in $(LOCK); a few minutes the first time"
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $(LOCK)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --requirement $(WITHOUT_HASHES)
	@touch $@

model: install $(MODEL)/spillway-tiny-model.txt $(RERANKER)/spillway-tiny-reranker.txt ## the tiny models that every local run serves

$(MODEL)/spillway-tiny-model.txt: engines/vllm/tiny_model.py | $(VENV)/.installed
	@echo "[3/3] tiny model: $(MODEL)"
	@$(PYTHON) -W ignore -m engines.vllm.tiny_model $(MODEL)
	@touch $@

$(RERANKER)/spillway-tiny-reranker.txt: engines/vllm/tiny_model.py | $(VENV)/.installed
	@$(PYTHON) -W ignore -m engines.vllm.tiny_model $(RERANKER) --reranker
	@touch $@

serve: model ## prefill and decode on real vLLM, at http://127.0.0.1:8000
	@exec $(PYTHON) -m deployments.launch deployments/configs/local-vllm.yaml $(ARGS)

serve-unified: model ## the same on one engine, without the handoff
	@exec $(PYTHON) -m deployments.launch deployments/configs/unified-vllm.yaml $(ARGS)

serve-emulated: model ## four prefill and four decode replicas that emulate an 8B model on H100s
	@exec $(PYTHON) -m deployments.launch deployments/configs/emulated.yaml $(ARGS)

smoke: model ## starts local-vllm.yaml and checks the handoff, disconnects and a killed engine; 3 minutes
	@exec $(PYTHON) -m deployments.smoke $(ARGS)

test-openai: model ## each shape of the API against vLLM's own server, on a model that knows its answers by heart; 10 minutes
	@exec $(PYTHON) -m loadtests.studies.openai_surface $(ARGS)

bench: model ## vLLM's own server, spillway and ray.serve.llm in turn, in one table
	@exec $(PYTHON) -m loadtests.studies.bench $(ARGS)

bench-router: model ## CPU of a request on its way to an engine: spillway's gateway and other routers; 6 minutes
	@exec $(PYTHON) -m loadtests.studies.bench_router $(ARGS)

bench-lanes: model ## two vLLM replicas as one pool and as two lanes, for short and long prompts; 12 minutes
	@exec $(PYTHON) -m loadtests.run_live lanes $(ARGS)

overload: model ## three and five times what emulated.yaml can serve, with and without admission; 10 minutes
	@exec $(PYTHON) -m loadtests.run_live overload $(ARGS)

overload-vllm: model ## the same for one real vLLM engine, with every admission policy, at 0.5 to 3 times its capacity; 30 minutes
	@exec $(PYTHON) -m loadtests.run_live overload-vllm $(ARGS)

hedging-vllm: model ## two real vLLM replicas, one of them slow now and then, with second attempts and without; 8 minutes
	@exec $(PYTHON) -m loadtests.run_live hedging-vllm $(ARGS)

coordination: model ## conversations for twice what two gateways can serve, together and each alone; 8 minutes
	@exec $(PYTHON) -m loadtests.run_live coordination $(ARGS)

loadtest: model ## ragged and flash-crowd through locust against emulated.yaml, simulated beside it; 3 minutes
	@exec $(PYTHON) -m loadtests.studies.loadtest $(ARGS)

loadtest-witness: model ## vLLM's own load generator beside ours, on one plan: do they measure the same? 7 minutes
	@exec $(PYTHON) -m loadtests.run_live reference-client $(ARGS)

fidelity: model ## the same plans for real and in the simulator, and how far it is off; 50 to 60 minutes
	@exec $(PYTHON) -m loadtests.studies.fidelity $(ARGS)

scenarios: install ## every scenario but the long ones in virtual time, against its baselines and checks; 10 to 15 minutes
	@exec $(PYTHON) -m loadtests.run_sim $(COMPILED) $(ARGS)

scaling: install ## the long scenarios of scaling policies: a day, a crowd, lengths that change, slow starts, no replica; 20 minutes
	@exec $(PYTHON) -m loadtests.run_sim $(SCALING) $(COMPILED) $(ARGS)

shedding: install ## the long scenarios of overload and shedding: a crowd, sessions, a step of load, clients that don't listen; 20 minutes
	@exec $(PYTHON) -m loadtests.run_sim $(SHEDDING) $(COMPILED) $(ARGS)

hedging: install ## the long scenarios of hedging: one engine slow, none, many, long prompts, tied requests; 5 minutes
	@exec $(PYTHON) -m loadtests.run_sim $(HEDGING) $(COMPILED) $(ARGS)

lab: install ## policies on the judging part of the suite, by their marks; ARGS=--tuning: on the other part; 35 minutes
	@exec $(PYTHON) -m loadtests.lab.run_suite --judging $(COMPILED) $(ARGS)

composition: install ## choices of policies in pairs: which are worse together than one of them alone? 25 minutes
	@exec $(PYTHON) -m loadtests.lab.run_composition $(COMPILED) $(ARGS)

bursts-vllm: model ## bursts of short and long prompts to two real vLLM engines, with the recommended policies; 20 minutes
	@exec $(PYTHON) -m loadtests.run_live bursts-vllm $(ARGS)

chaos: model ## one fault after the other to emulated engines behind two gateways: what fails, and for how long? 27 minutes
	@exec $(PYTHON) -m loadtests.run_live chaos $(ARGS)

chaos-vllm: model ## the same to real vLLM: replicas and engines are killed, and clients leave during handoffs; 25 minutes
	@exec $(PYTHON) -m loadtests.run_live chaos-vllm $(ARGS)

soak: model ## half an hour at 0.6 of capacity with a kill every 30 s: is anything lost, does anything grow? 35 minutes
	@exec $(PYTHON) -m loadtests.run_live soak $(ARGS)

adversary: model ## what strangers, clients and tenants may try, against emulated engines and vLLM: what comes of it? 30 minutes
	@exec $(PYTHON) -m loadtests.studies.adversary $(ARGS)

ingress: model ## a gateway, the listener and HAProxy are killed or stopped: what do clients notice? 20 minutes
	@exec $(PYTHON) -m loadtests.run_live ingress $(ARGS)

four-gateways: model ## bursts to emulated engines behind one gateway and behind four; 20 minutes
	@exec $(PYTHON) -m loadtests.run_live four-gateways $(ARGS)

autoscale: model ## a day in ten minutes to emulated engines whose pools grow and shrink, simulated beside it; 14 minutes
	@exec $(PYTHON) -m loadtests.run_live autoscale $(ARGS)

what-binds: model ## six ways to lose time, each provoked on emulated engines: is it named? 11 minutes
	@exec $(PYTHON) -m loadtests.run_live what-binds $(ARGS)

plan: install ## the figures of capacity plans, each with its formula, the cheapest fleet for a recorded hour, and that hour on it; 7 minutes
	@$(PYTHON) -m loadtests.plan figures
	@$(PYTHON) -m loadtests.plan recommend $(RECORDED) --engine h100x4-llama3-70b=12 $(COMPILED) $(ARGS)
	@exec $(PYTHON) -m loadtests.run_sim $(RECORDED) $(COMPILED)

simulate-faults: install ## a million requests under random faults in virtual time: does everything hold that must? 20 minutes
	@exec $(PYTHON) -m loadtests.simulate_faults --requests 1000000 $(ARGS)

sim-bench: install ## how many requests a second the simulator does
	@exec $(PYTHON) -m loadtests.run_sim --bench $(COMPILED) $(ARGS)

length-report: install ## how well the lengths of answers are predicted; ARGS="--trace FILE" adds an Azure trace
	@exec $(PYTHON) -m loadtests.length_models.report $(ARGS)

bench-decisions: install ## microseconds for a decision, for each balancer with 8, 64 and 512 replicas
	@exec $(PYTHON) -m loadtests.studies.microbench.decision_bench $(ARGS)

calibrate: model ## measures this machine into engines/profiles/vllm-cpu-tiny.yaml; leave it alone meanwhile
	@exec $(PYTHON) -W ignore -m engines.calibration --handoff --engine-core 0 --front-core 1 \
		--output engines/profiles/vllm-cpu-tiny.yaml $(ARGS)

reference: install ## docs/reference anew, from the code that it describes
	@exec $(PYTHON) -m deployments.reference

check: install ## format, lint, types, import directions
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Exit status 5: ARGS has chosen no test of this part.
test: model ## every test, those on real Ray and real vLLM included; 15 minutes
	$(PYTHON) -m pytest -m "not ray and not vllm and not proof" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS) || test $$? -eq 5
	$(PYTHON) -m pytest -m "(ray or vllm) and not proof" -n 2 --dist loadscope --no-loadscope-reorder $(ARGS) || test $$? -eq 5

proofs: model ## what takes too long for `make test`, with results in docs/reports/proofs; 4 hours, goes on where it was
	@exec $(PYTHON) -m loadtests.proofs $(ARGS)

proof-tests: model ## the tests that are marked as proofs
	$(PYTHON) -m pytest -m proof $(ARGS)

lock: install ## resolves pyproject.toml anew into requirements-cpu.lock, with hashes; ARGS=--keep: only what is new
	$(PYTHON) .ci/lock $(ARGS)

audit: install ## the environment against the lock, licences, known vulnerabilities, and a bill of materials in .run
	@exec $(PYTHON) .ci/audit $(ARGS)

clean: ## removes the environment, the model and what was compiled
	rm -rf $(VENV) .models .run/compiled
