"""The real planner, lived with: no plan is ever unsafe, and when faults end what is wanted comes about.

The normal run takes the same examples every time, so that a commit is not blamed for what it did not do; `LLMGW_EXAMPLES`
asks for that many others.
"""

import os

from hypothesis import HealthCheck, settings

from tests.properties.planner_machine import PlannerMachine

EXAMPLES = os.environ.get("LLMGW_EXAMPLES")

TestPlanner = PlannerMachine.TestCase
TestPlanner.settings = settings(
    max_examples=int(EXAMPLES or 80),
    derandomize=EXAMPLES is None,
    database=None,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
