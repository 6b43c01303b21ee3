"""How it is known that nothing can reach a batch's memory any more.

Each batch's memory is wrapped in a new `Loan`, an object of ours that NumPy takes as the owner of the memory through
`__array_interface__`. One byte array is made over it, and every field over that. NumPy collapses chains of `.base`
among arrays (a view of a view refers to the first array), but never past an object that is not an array, so whatever is
made from a field (views, memoryviews, dlpack capsules, torch tensors, pickle buffers) holds, directly or not, the byte
array, and this the loan. When the last of them goes, in whichever thread, a weak reference to the loan tells the
lender. Counting references (`sys.getrefcount`) instead would see only views that hold the counted object itself, and
its meaning changes between CPython 3.12, 3.14 and free-threaded builds.

No line of Python runs where a batch is dropped: what the weak reference calls is `deque.append`. The loop's thread
drops most batches, and a Ctrl-C that arrives while a `__del__` or a callback in Python runs is printed and forgotten.

```
 field ──► byte array ──► Loan ──► memory          after the last reference: memory ──► its lender
 view of field ──▲
```
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, Generic, TypeVar

__all__ = ["Interface", "Loan", "Loans", "interface_of"]

Interface = dict[str, Any]
"""How a stretch of memory describes itself to NumPy: kept, as asking for it takes longer than all the rest."""

_Lent = TypeVar("_Lent")


def interface_of(address: int, num_bytes: int) -> Interface:
    """Returns the interface of `num_bytes` writable bytes."""
    return {"version": 3, "shape": (num_bytes,), "typestr": "|u1", "data": (address, False)}


class Loan:
    """The owner of one batch's memory in NumPy's eyes; `memory` is whatever must stay while it is out."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: object, interface: Interface) -> None:
        self._memory = memory
        self.__array_interface__ = interface


class Loans(Generic[_Lent]):
    """What is out, and what has come back.

    Lending, looking and the dropping of batches may happen in any threads at once. Nothing here locks: a garbage
    collection may drop a batch in the middle of any line of ours, and a lock held there would be waited for by its own
    thread. Each step is one operation of a dict or a deque.
    """

    __slots__ = ("_ended", "_out")

    def __init__(self) -> None:
        self._out: dict[weakref.ref[Loan], _Lent] = {}
        self._ended: deque[weakref.ref[Loan]] = deque()

    def note(self, loan: Loan, lent: _Lent) -> None:
        """`lent` is what comes back when nothing can reach `loan` any more."""
        self._out[weakref.ref(loan, self._ended.append)] = lent

    def out(self) -> list[_Lent]:
        """Returns what is out."""
        self.returned()
        # Looked at one by one: what an interrupted look had in hand is still in the dict.
        return [lent for loan, lent in list(self._out.items()) if loan() is not None]

    @property
    def is_any_out(self) -> bool:
        """Whether anything is out: the first that is ends the look, however much there is."""
        self.returned()
        return any(loan() is not None for loan in list(self._out))

    def returned(self) -> list[_Lent]:
        """Returns what has come back since the last look, each once."""
        back = []
        while self._ended:
            try:
                back.append(self._out.pop(self._ended.popleft()))
            except (IndexError, KeyError):  # another thread looks too; or `forget`
                continue
        return back

    def forget(self) -> None:
        """Nobody asks for what is out any more: from now on a loan alone holds its memory."""
        self._out.clear()  # and with it the weak references
        self._ended.clear()
