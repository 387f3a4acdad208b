"""Everything that drives the service from outside: workloads and their clients, and the benchmark over HTTP.

Rooms:
    drivers: a scenario against a live deployment, open loop, in one process or several.
    fault_simulation: random faults in virtual time, and what must hold; :mod:`loadtests.simulate_faults` is its command
        line.
    lab: sweeps of scenarios as frames and figures, and the suite that policies are chosen and judged on.
    length_models: models of answer lengths: their data, their training, and how good they are.
    live: a study of deployments, from its file to what its checks came to.
    locust_user: the same under locust: its one user, its shape, its page.
    machine: the machine that a study runs on: deployments, cores, and who else was busy.
    plan: how many replicas a workload needs, and the formulas that say so.
    reports: what a report of runs is made of; :mod:`loadtests.report` is its command line.
    results: what a run came to: metrics, comparisons, checks, and the folder that it is kept in.
    scenario: a scenario: a fleet, policies, a workload, and what is expected of them.
    schema: how scenario files are read: strictly, with errors that say where.
    simulation: a scenario in virtual time: its runs, their verdict, and what is kept of them.
    studies: the studies' files, and benches that have a command each.
    watch: what a deployment says of itself while a client drives it.
    workloads: who asks for what, and when: arrivals, lengths, conversations, traces, and clients that try again.
"""
