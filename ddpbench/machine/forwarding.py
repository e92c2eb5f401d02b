"""Objects that stand in for a dataset of the user."""

from __future__ import annotations

from typing import Any


class ForwardsAttributes:
    """Has the attributes of the object in ``_dataset``, which a script may read and set. Its own are entered into ``__dict__``."""

    _dataset: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_dataset" not in self.__dict__:  # of a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)
