"""The structures of native/shm.h and native/optimizer.h, field by field as the C code has them."""

import ctypes
from typing import Final

PARITIES: Final = 2
SIGNATURE_BYTES: Final = 32768
COUNTERS_BYTES: Final = 4 * 128  # what stands before the signatures in a rank's part of the segment's head
RANK_HEAD_BYTES: Final = COUNTERS_BYTES + PARITIES * SIGNATURE_BYTES


class ChannelStruct(ctypes.Structure):
    """One rank's end of a segment: `channel`."""

    _fields_ = [
        ("base", ctypes.c_void_p),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("chunk_bytes", ctypes.c_uint64),
        ("round", ctypes.c_uint32),
        ("collective", ctypes.c_uint32),
        ("spins", ctypes.c_int32),
        ("stop", ctypes.c_void_p),
    ]


class JobStruct(ctypes.Structure):
    """One collective: `job`."""

    _fields_ = [
        ("what", ctypes.c_char_p),
        ("what_bytes", ctypes.c_uint64),
        ("dtype", ctypes.c_int32),
        ("op", ctypes.c_int32),
        ("divisor", ctypes.c_int32),
        ("reduces", ctypes.c_int32),
        ("chunks", ctypes.c_void_p),
        ("peers", ctypes.c_void_p),
        ("pieces", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("before", ctypes.c_void_p),
        ("partial", ctypes.c_void_p),
        ("own", ctypes.c_void_p),
        ("gathered", ctypes.c_void_p),
        ("timeout_s", ctypes.c_double),
        ("started", ctypes.c_uint32),
        ("next", ctypes.c_uint32),
        ("phase", ctypes.c_uint32),
        ("piece", ctypes.c_uint32),
        ("blamed", ctypes.c_int32),
    ]


class UpdateStruct(ctypes.Structure):
    """What becomes of the own chunk: `update`."""

    _fields_ = [
        ("rule", ctypes.c_int32),
        ("last", ctypes.c_int32),
        ("targets", ctypes.c_int32),
        ("terms", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("master", ctypes.c_void_p),
        ("states", ctypes.c_void_p * 2),
    ]


class SgdTermsStruct(ctypes.Structure):
    """`sgd_terms`."""

    _fields_ = [
        ("scale", ctypes.c_double),
        ("rate", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("decay", ctypes.c_double),
        ("nesterov", ctypes.c_int),
    ]


class AdamTermsStruct(ctypes.Structure):
    """`adam_terms`."""

    _fields_ = [
        (name, ctypes.c_double)
        for name in (
            "scale", "beta1", "one_minus_beta1", "beta2", "one_minus_beta2", "root_correction", "epsilon",
            "coupled_decay", "decoupled_decay", "keep", "step",
        )
    ]  # fmt: skip


# In the order of ringtrain_struct_bytes in native/update.c.
STRUCT_BYTES: Final = (
    RANK_HEAD_BYTES,
    *map(ctypes.sizeof, (ChannelStruct, JobStruct, UpdateStruct, SgdTermsStruct, AdamTermsStruct)),
)


def differing_layout(library: ctypes.CDLL) -> str:
    """How the structures of `library` differ in size from those of this module; empty where they do not."""
    try:
        theirs = tuple((ctypes.c_uint32 * len(STRUCT_BYTES)).in_dll(library, "ringtrain_struct_bytes"))
    except ValueError:
        return "it tells no sizes of structures"
    return "" if theirs == STRUCT_BYTES else f"its structures have {theirs} bytes, expected {STRUCT_BYTES}"
