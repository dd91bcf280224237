"""What is attacked: the model, the goal, the result and its verification."""

from sparsepgd.problem.goals import Goal, Targeted, Untargeted
from sparsepgd.problem.verify import Result

__all__ = ["Goal", "Result", "Targeted", "Untargeted"]
