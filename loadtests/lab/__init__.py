"""The laboratory: scenarios with any field changed, alone or over a grid, as pandas frames, in seconds.

from loadtests.lab import scenario, sweep

ragged = scenario("ragged", {"fleet.num_gateways": 4, "duration_s": 60})
found = sweep(ragged, {"load": [0.5, 0.8, 1.1], "policies.balancing": ["least_work_left", "power_of_two"]})
found.table("goodput_fraction")
found.paired("ttft_p99_s", against={"policies.balancing": "power_of_two"})
found.plot("goodput_fraction", over="load", by="policies.balancing").show()
"""

from loadtests.lab.frames import LabFrames
from loadtests.lab.lab_scenario import LabScenario, scenario
from loadtests.lab.sweeping import run, sweep

__all__ = ["LabFrames", "LabScenario", "run", "scenario", "sweep"]
