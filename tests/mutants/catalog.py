"""All seeded faults."""

from tests.mutants.engine_mutants import ENGINE_MUTANTS
from tests.mutants.gateway_mutants import GATEWAY_MUTANTS
from tests.mutants.gpu_mutants import GPU_MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.scheduler_mutants import SCHEDULER_MUTANTS

MUTANTS: tuple[Mutant, ...] = ENGINE_MUTANTS + GPU_MUTANTS + GATEWAY_MUTANTS + SCHEDULER_MUTANTS
