"""Other packages: our attacks in their call shapes, and theirs as members of our cascade and comparison.

``adapters.foolbox``, ``adapters.art`` and ``adapters.torchattacks`` need the package of that name and are imported by
whoever has it: ``from sparsepgd.adapters.foolbox import FoolboxAttack``. What is exported here needs nothing more.
"""

from sparsepgd.adapters.attackbench import Function, spgd
from sparsepgd.adapters.loaders import OnLoader
from sparsepgd.adapters.outside import Outside

__all__ = ["Function", "OnLoader", "Outside", "spgd"]
