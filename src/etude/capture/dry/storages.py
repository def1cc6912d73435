"""Memory of a dry run: when the storage of a tensor was made and when it was freed, in the order of the program."""

import weakref
from array import array
from typing import Any

_PLACES = {"cpu": 0, "meta": 2}


class TensorStorages:
    """Numbers storages in the order in which they appear. `events` are (number, bytes) pairs: bytes below 0 free it."""

    def __init__(self) -> None:
        self.events = array("q")
        self.sizes: list[int] = []
        self.places: list[int] = []
        """Where a storage is: 0 the host, 1 the device, 2 nowhere (`meta`)."""
        self.streams: list[int] = []
        self.made_at: list[int] = []
        """The operator that made it: as many rows as there were."""
        self.roles: dict[int, str] = {}
        """What a storage is, if the program says so: a weight, a gradient, ..."""
        self._numbers: dict[int, int] = {}
        self._watched: dict[int, Any] = {}

    def number(self, tensor: Any, stream: int, row: int) -> int:
        """The number of a tensor's storage, which is new if it was not seen before."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._numbers.get(key)
        if known is not None:
            self._resize(known, storage.nbytes())
            return known
        number = self._numbers[key] = len(self.sizes)
        size = storage.nbytes()
        self.sizes.append(0)
        self.places.append(_PLACES.get(tensor.device.type, 1))
        self.streams.append(stream)
        self.made_at.append(row)
        self._resize(number, size)
        self._watched[number] = weakref.ref(storage, lambda _: self._freed(key, number))
        return number

    def follow_sizes(self, torch: Any) -> None:
        """Sees a storage that is made smaller or larger when that happens, and not at its next use: FSDP gives weights
        that it gathered back like this."""
        resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            known = self._numbers.get(storage._cdata)
            if known is not None:
                self._resize(known, storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resized

    def seen(self, tensor: Any) -> int | None:
        """The number of a tensor's storage, if it has one."""
        return self._numbers.get(tensor.untyped_storage()._cdata)

    def _resize(self, number: int, size: int) -> None:
        """Programs that shard weights free a storage by making it smaller, and fill it again."""
        before = self.sizes[number]
        if size != before:
            if before:
                self.events.extend((number, -before))
            if size:
                self.events.extend((number, size))
            self.sizes[number] = size

    def _freed(self, key: int, number: int) -> None:
        self._resize(number, 0)
        self._numbers.pop(key, None)
        self._watched.pop(number, None)
