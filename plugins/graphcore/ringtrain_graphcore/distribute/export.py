"""Export of a checkpoint of an Estimator as a SavedModel."""

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from ringtrain.errors import ConfigurationError, kind_of
from ringtrain_graphcore.distribute.specs import EstimatorSpec

_v1 = tf.compat.v1
_DEFAULT_SIGNATURE = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


def write_saved_model(
    base: str,
    receiver: Any,
    spec: EstimatorSpec,
    checkpoint: str,
    session_config: Any,
    assets: Mapping[str, str] | None,
    as_text: bool,
) -> str:
    """Write the current graph with the weights of `checkpoint` as a SavedModel; return the new folder's path."""
    inputs = receiver.receiver_tensors
    inputs = dict(inputs) if isinstance(inputs, Mapping) else {"input": inputs}
    outputs = dict(spec.export_outputs or {_DEFAULT_SIGNATURE: spec.predictions})
    signatures = {name: _saved_model_signature(name, inputs, output) for name, output in outputs.items()}
    if len(outputs) == 1:
        signatures.setdefault(_DEFAULT_SIGNATURE, *signatures.values())
    if _DEFAULT_SIGNATURE not in signatures:
        raise ConfigurationError(
            f"export_outputs has the signatures {', '.join(signatures)}; expected one to be {_DEFAULT_SIGNATURE!r}"
        )
    folder = _new_export_folder(base)
    builder = _v1.saved_model.Builder(str(folder))
    with _v1.Session(config=session_config) as session:
        saver = _v1.train.Saver()
        saver.restore(session, checkpoint)
        session.run(_v1.tables_initializer())
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            signatures,
            main_op=tf.group(_v1.local_variables_initializer(), _v1.tables_initializer()),
            strip_default_attrs=True,
        )
    builder.save(as_text)
    for name, source in (assets or {}).items():
        target = folder / "assets.extra" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return str(folder)


def _saved_model_signature(name: str, inputs: Mapping[str, Any], output: Any) -> Any:
    if hasattr(output, "as_signature_def"):
        return output.as_signature_def(inputs)
    if isinstance(output, tf.Tensor):
        output = {"output": output}
    if not isinstance(output, Mapping):
        raise ConfigurationError(
            f"export_outputs[{name!r}] is {kind_of(output)}; expected a dict of tensors, a tensor, or an "
            "object with as_signature_def"
        )
    return _v1.saved_model.predict_signature_def(dict(inputs), dict(output))


def _new_export_folder(base: str) -> Path:
    """Return the path of a new folder in `base`, named by the time in seconds, because servers load the newest."""
    stamp = int(time.time())
    while (folder := Path(base, str(stamp))).exists():
        stamp += 1
    return folder
