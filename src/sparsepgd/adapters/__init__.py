"""Adapters: our attacks with the interfaces of other packages, and their attacks in our cascades and comparisons.

``adapters.foolbox``, ``adapters.art`` and ``adapters.torchattacks`` need the package of that name, so import them
directly: ``from sparsepgd.adapters.foolbox import FoolboxAttack``. The names exported here need no other package.
"""

from sparsepgd.adapters.attackbench import Function, spgd
from sparsepgd.adapters.loaders import OnLoader
from sparsepgd.adapters.outside import Outside

__all__ = ["Function", "OnLoader", "Outside", "spgd"]
