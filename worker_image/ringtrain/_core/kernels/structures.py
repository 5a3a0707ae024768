"""Python declarations of the C structures in native/shm.h and native/optimizer.h, with the same fields."""

import ctypes
from typing import Any, Final

import numpy as np

PARITIES: Final = 2
SIGNATURE_BYTES: Final = 32768
COUNTERS_BYTES: Final = 4 * 128  # before the signatures in a rank's part of the segment's head
RANK_HEAD_BYTES: Final = COUNTERS_BYTES + PARITIES * SIGNATURE_BYTES


def _fields_of_kind(kind: type[Any], names: str) -> list[tuple[str, type[Any]]]:
    """Return ctypes fields with the space-separated `names`, all of type `kind`."""
    return [(name, kind) for name in names.split()]


class ChannelStruct(ctypes.Structure):
    """C struct `channel`: one rank's access to a shared-memory segment."""

    _fields_ = [
        ("base", ctypes.c_void_p),
        *_fields_of_kind(ctypes.c_int32, "rank size"),
        ("chunk_bytes", ctypes.c_uint64),
        ("round", ctypes.c_uint32),
        ("collective", ctypes.c_uint64),
        ("spin_s", ctypes.c_double),
        ("stop", ctypes.c_void_p),
    ]


class JobStruct(ctypes.Structure):
    """C struct `job`: arguments and progress of one collective."""

    _fields_ = [
        ("what", ctypes.c_char_p),
        ("what_bytes", ctypes.c_uint64),
        *_fields_of_kind(ctypes.c_int32, "dtype op divisor reduces hasty"),
        *_fields_of_kind(ctypes.c_void_p, "chunks peers pieces source before partial own gathered"),
        ("timeout_s", ctypes.c_double),
        *_fields_of_kind(ctypes.c_uint32, "started next phase piece"),
        ("blamed", ctypes.c_int32),
    ]


class UpdateStruct(ctypes.Structure):
    """C struct `update`: arguments of the weight update of this rank's chunk."""

    _fields_ = [
        *_fields_of_kind(ctypes.c_int32, "rule last targets"),
        ("spans", ctypes.c_void_p),
        ("offset", ctypes.c_int64),
        *_fields_of_kind(ctypes.c_void_p, "weights master reduced"),
        ("states", ctypes.c_void_p * 2),
        ("kept", ctypes.c_void_p * 3),
        ("kept_count", ctypes.c_void_p),
    ]


# C struct `span`: a parameter's part of the own chunk; and the value of its field `fate` for a parameter without a
# gradient.
SPAN: Final = np.dtype([("end", np.int64), ("terms", np.uint64), ("fate", np.int64)])
STAYS: Final = 2


class SgdTermsStruct(ctypes.Structure):
    """C struct `sgd_terms`: coefficients of one SGD update."""

    _fields_ = [*_fields_of_kind(ctypes.c_double, "scale rate momentum decay"), ("nesterov", ctypes.c_int)]


class AdamTermsStruct(ctypes.Structure):
    """C struct `adam_terms`: coefficients of one Adam update."""

    _fields_ = [
        *_fields_of_kind(ctypes.c_double, "scale beta1 one_minus_beta1 beta2 one_minus_beta2 root_correction epsilon"),
        *_fields_of_kind(ctypes.c_double, "coupled_decay decoupled_decay keep step"),
    ]


# In the order of ringtrain_struct_bytes in native/update.c.
STRUCT_BYTES: Final = (
    RANK_HEAD_BYTES,
    *map(ctypes.sizeof, (ChannelStruct, JobStruct)),
    SPAN.itemsize,
    *map(ctypes.sizeof, (UpdateStruct, SgdTermsStruct, AdamTermsStruct)),
)


def differing_layout(library: ctypes.CDLL) -> str:
    """Return how the sizes of the C structures in `library` differ from those here; empty if all are equal."""
    try:
        theirs = tuple((ctypes.c_uint32 * len(STRUCT_BYTES)).in_dll(library, "ringtrain_struct_bytes"))
    except ValueError:
        return "it has no table of structure sizes"
    return "" if theirs == STRUCT_BYTES else f"its structures have {theirs} bytes, expected {STRUCT_BYTES}"
