"""Operation in TensorFlow graphs that calls a Python function; exceptions become TensorFlow errors.

`tf.numpy_function` reports every error as InvalidArgumentError or UnknownError. Operation and kernel are registered
through TensorFlow's C API (`tensorflow/c/ops.h`, `tensorflow/c/kernels.h`), so nothing is compiled.
"""

import contextlib
import ctypes
import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from ctypes import CFUNCTYPE, POINTER, byref, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from ringtrain.adapter import Array
from ringtrain.errors import ConfigurationError
from ringtrain_tensorflow.errors import tensorflow_status_of

Function = Callable[..., Sequence[Array]]

OPERATION: Final = "RingtrainCall"
_UNKNOWN_RANK: Final = CFUNCTYPE(None, c_void_p, c_void_p)
_CREATE: Final = CFUNCTYPE(c_void_p, c_void_p)
_COMPUTE: Final = CFUNCTYPE(None, c_void_p, c_void_p)
_DELETE: Final = CFUNCTYPE(None, c_void_p)

_functions: dict[int, Function] = {}
_tokens = itertools.count(1)
_registering = threading.Lock()
_kept: list[Any] = []  # callbacks that TensorFlow calls until the process ends


@tf.autograph.experimental.do_not_convert
def add_operation(function: Function, inputs: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Add a node to the current graph that calls `function` on the arrays of `inputs`; return its outputs, of `dtypes`.

    The function runs on a TensorFlow thread and must return quickly. Its exceptions become TensorFlow errors, see
    `tensorflow_status_of`.
    """
    return list(add_node(function, inputs, dtypes).outputs)


@tf.autograph.experimental.do_not_convert
def add_node(function: Function, inputs: Sequence[Any], dtypes: Sequence[Any]) -> Any:
    """Add a node as `add_operation` does, and return the node, not its outputs."""
    _register_operation()
    graph = tf.compat.v1.get_default_graph()
    token = next(_tokens)
    _functions[token] = function
    weakref.finalize(_outermost_graph(graph), _functions.pop, token, None)
    return graph.create_op(
        OPERATION,
        list(inputs),
        [tf.as_dtype(dtype) for dtype in dtypes],
        attrs={
            "token": _operation_attribute(i=token),
            "Tin": _operation_types(tensor.dtype for tensor in inputs),
            "Tout": _operation_types(dtypes),
        },
    )


@contextlib.contextmanager
def out_of_graph_order() -> Iterator[None]:
    """Context whose new nodes run as soon as their inputs and control inputs are ready. Other nodes of a `tf.function`
    also wait for all earlier operations with side effects."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    order = getattr(graph, "experimental_acd_manager", None)  # of a function's graph that is being built
    if order is not None:
        for node in graph.get_operations()[before:]:
            order.run_independently(node)


def _operation_attribute(**value: Any) -> Any:
    return tf.compat.v1.AttrValue(**value)


def _operation_types(dtypes: Any) -> Any:
    enums = [tf.as_dtype(dtype).as_datatype_enum for dtype in dtypes]
    return _operation_attribute(list=tf.compat.v1.AttrValue.ListValue(type=enums))


def _outermost_graph(graph: Any) -> Any:
    """Return the outermost graph that contains `graph`; it lives longer than the functions inside it."""
    while (outer := getattr(graph, "outer_graph", None)) is not None and outer is not graph:
        graph = outer
    return graph


class _TensorFlowMemory:
    """Owner of a TensorFlow tensor's memory, which numpy arrays use without a copy. The last array frees it."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        library = _tensorflow_library()
        self.dtype = tf.as_dtype(library.TF_TensorType(tensor)).as_numpy_dtype
        dims = library.TF_NumDims(tensor)
        shape = tuple(library.TF_Dim(tensor, axis) for axis in range(dims))
        self.__array_interface__ = {
            "version": 3,
            "shape": (library.TF_TensorByteSize(tensor),),
            "typestr": "|u1",
            "data": (library.TF_TensorData(tensor) or 0, False),
        }
        self.shape = shape

    def array(self) -> Array:
        return np.asarray(self).view(self.dtype).reshape(self.shape)

    def __del__(self) -> None:
        _tensorflow_library().TF_DeleteTensor(self._tensor)


def _operation_input(context: Any, index: int) -> Array:
    library = _tensorflow_library()
    tensor, status = c_void_p(), library.TF_NewStatus()
    library.TF_GetInput(context, index, byref(tensor), status)
    _check_tf_status(status)
    memory = _TensorFlowMemory(tensor)
    return memory.array() if 0 not in memory.shape else np.empty(memory.shape, memory.dtype)


def _set_output(context: Any, index: int, result: Any) -> None:
    library = _tensorflow_library()
    kind = library.TF_ExpectedOutputDataType(context, index)
    array = np.asarray(result, tf.as_dtype(kind).as_numpy_dtype, order="C")
    dims = (c_int64 * max(1, array.ndim))(*array.shape)
    status = library.TF_NewStatus()
    tensor = library.TF_AllocateOutput(context, index, kind, dims, array.ndim, array.nbytes, status)
    _check_tf_status(status)
    if array.nbytes:
        ctypes.memmove(library.TF_TensorData(tensor), array.ctypes.data, array.nbytes)
    library.TF_DeleteTensor(tensor)


def _check_tf_status(status: Any) -> None:
    library = _tensorflow_library()
    code, message = library.TF_GetCode(status), library.TF_Message(status)
    library.TF_DeleteStatus(status)
    if code:
        raise RuntimeError(message.decode(errors="replace"))


def _create_operation_kernel(construction: Any) -> int:
    library = _tensorflow_library()
    token, status = c_int64(), library.TF_NewStatus()
    library.TF_OpKernelConstruction_GetAttrInt64(construction, b"token", byref(token), status)
    library.TF_DeleteStatus(status)
    return token.value


def _compute_operation(token: int | None, context: Any) -> None:
    library = _tensorflow_library()
    try:
        function = _functions.get(token or 0)
        if function is None:
            raise ConfigurationError(
                "a graph with Ringtrain's collectives was loaded from a file or from another process; build the "
                "graph in this process"
            )
        arrays = [_operation_input(context, index) for index in range(library.TF_NumInputs(context))]
        for index, result in enumerate(function(*arrays)):
            _set_output(context, index, result)
    except BaseException as error:  # a C callback cannot raise
        status = library.TF_NewStatus()
        library.TF_SetStatus(status, tensorflow_status_of(error), f"{type(error).__name__}: {error}".encode())
        library.TF_OpKernelContext_Failure(context, status)
        library.TF_DeleteStatus(status)


def _register_operation() -> None:
    """Register the operation and its kernel with TensorFlow. Further calls do nothing."""
    with _registering:
        if _kept:
            return
        library = _tensorflow_library()
        shapes = _UNKNOWN_RANK(_no_shapes)
        callbacks = (_CREATE(_create_operation_kernel), _COMPUTE(_compute_operation), _DELETE(lambda _: None))
        builder = library.TF_NewOpDefinitionBuilder(OPERATION.encode())
        library.TF_OpDefinitionBuilderAddAttr(builder, b"token: int")
        library.TF_OpDefinitionBuilderAddAttr(builder, b"Tin: list(type) >= 0")
        library.TF_OpDefinitionBuilderAddAttr(builder, b"Tout: list(type) >= 0")
        library.TF_OpDefinitionBuilderAddInput(builder, b"given: Tin")
        library.TF_OpDefinitionBuilderAddOutput(builder, b"results: Tout")
        library.TF_OpDefinitionBuilderSetIsStateful(builder, True)
        library.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, shapes)
        status = library.TF_NewStatus()
        library.TF_RegisterOpDefinition(builder, status)
        _check_tf_status(status)
        kernel = library.TF_NewKernelBuilder(OPERATION.encode(), b"CPU", *callbacks)
        status = library.TF_NewStatus()
        library.TF_RegisterKernelBuilder(OPERATION.encode(), kernel, status)
        _check_tf_status(status)
        _kept.extend((shapes, *callbacks))
        tf.no_gradient(OPERATION)


def _no_shapes(context: Any, status: Any) -> None:
    """Shape function for TensorFlow: declares all output shapes as unknown; callers set them."""
    _tensorflow_library().TF_ShapeInferenceContextSetUnknownShape(context, status)


# Result and argument types of the used C functions; "status" is always the last argument.
_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "TF_NewStatus": (c_void_p, ()),
    "TF_DeleteStatus": (None, (c_void_p,)),
    "TF_SetStatus": (None, (c_void_p, c_int, c_char_p)),
    "TF_GetCode": (c_int, (c_void_p,)),
    "TF_Message": (c_char_p, (c_void_p,)),
    "TF_NewOpDefinitionBuilder": (c_void_p, (c_char_p,)),
    "TF_OpDefinitionBuilderAddAttr": (None, (c_void_p, c_char_p)),
    "TF_OpDefinitionBuilderAddInput": (None, (c_void_p, c_char_p)),
    "TF_OpDefinitionBuilderAddOutput": (None, (c_void_p, c_char_p)),
    "TF_OpDefinitionBuilderSetIsStateful": (None, (c_void_p, c_bool)),
    "TF_OpDefinitionBuilderSetShapeInferenceFunction": (None, (c_void_p, _UNKNOWN_RANK)),
    "TF_ShapeInferenceContextSetUnknownShape": (None, (c_void_p, c_void_p)),
    "TF_RegisterOpDefinition": (None, (c_void_p, c_void_p)),
    "TF_NewKernelBuilder": (c_void_p, (c_char_p, c_char_p, _CREATE, _COMPUTE, _DELETE)),
    "TF_RegisterKernelBuilder": (None, (c_char_p, c_void_p, c_void_p)),
    "TF_OpKernelConstruction_GetAttrInt64": (None, (c_void_p, c_char_p, POINTER(c_int64), c_void_p)),
    "TF_OpKernelContext_Failure": (None, (c_void_p, c_void_p)),
    "TF_NumInputs": (c_int, (c_void_p,)),
    "TF_GetInput": (None, (c_void_p, c_int, POINTER(c_void_p), c_void_p)),
    "TF_ExpectedOutputDataType": (c_int, (c_void_p, c_int)),
    "TF_AllocateOutput": (
        c_void_p,
        (c_void_p, c_int, c_int, POINTER(c_int64), c_int, c_size_t, c_void_p),
    ),
    "TF_TensorType": (c_int, (c_void_p,)),
    "TF_NumDims": (c_int, (c_void_p,)),
    "TF_Dim": (c_int64, (c_void_p, c_int)),
    "TF_TensorByteSize": (c_size_t, (c_void_p,)),
    "TF_TensorData": (c_void_p, (c_void_p,)),
    "TF_DeleteTensor": (None, (c_void_p,)),
}


@functools.cache
def _tensorflow_library() -> Any:
    """Return TensorFlow's loaded C library. Raises ConfigurationError if it lacks a function."""
    name = "libtensorflow_framework.2.dylib" if sys.platform == "darwin" else "libtensorflow_framework.so.2"
    path = Path(tf.sysconfig.get_lib()) / name
    try:
        library = ctypes.CDLL(str(path))
        for function, (result, arguments) in _SIGNATURES.items():
            found = getattr(library, function)
            found.restype, found.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ConfigurationError(
            f"{path}: {error}; expected an official build of TensorFlow 2.20 or newer, and this is {tf.__version__}"
        ) from error
    return library
