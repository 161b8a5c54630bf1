"""An engine that spans nodes, for the planner's tests: the stand-in that the simulation has."""

from llmgw.sim.spanning import SIM_ENGINES as WITH_SPANNING

__all__ = ["WITH_SPANNING"]
