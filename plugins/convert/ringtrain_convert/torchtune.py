"""Command of torchtune (`tune run`), which Kubeflow Trainer completes for its torchtune runtimes.

Based on pkg/runtime/framework/plugins/torch/torchtune.go of kubeflow/trainer 2.3.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ringtrain_operator.errors import Invalid, Problem

TUNE_RUN = ["tune", "run"]
_MODELS = ("llama3_2/1B", "llama3_2/3B", "llama3_3/70B", "qwen2_5/1.5B")
# The only model with a configuration for several nodes.
_OF_SEVERAL_NODES = "llama3_3/70B"
# Models without a QLoRA configuration, for several GPUs or at all.
_ONE_GPU_QLORA = ("llama3_2/1B", "llama3_2/3B")
_NO_QLORA = "qwen2_5/1.5B"
# Settings that a runtime's command has and a job must not change.
_OF_RUNTIME = {"output_dir", "tokenizer.path", "tokenizer.merges_file", "checkpointer.checkpoint_dir"}
_LORA, _QUANTIZED, _DORA = "model.lora_attn_modules", "model.quantize_base", "model.use_dora"
# torchrun's default rendezvous, at the first worker.
_RENDEZVOUS = "--rdzv_endpoint=$(MASTER_ADDR):$(MASTER_PORT)"


class TuneJob(NamedTuple):
    """Fields on which a torchtune command depends. `of_runtime`: the runtime's command. `per_node`: processes."""

    runtime: str
    of_runtime: Sequence[str]
    arguments: Sequence[str]
    nodes: int
    per_node: int
    gpus: int


def tune_command(job: TuneJob) -> list[str]:
    """Return the whole command. Raises Invalid if Trainer refuses the job."""
    model, adapter = _model_of_runtime(job.runtime), _adapter(job.arguments)
    single = job.nodes == 1 and 1 in (job.per_node, job.gpus)
    if problems := list(_tune_problems(job, model, adapter, single)):
        raise Invalid(problems)
    method, place = ("lora" if adapter else "full"), "single_device" if single else "distributed"
    config = f"{model}_{adapter or 'full'}" + ("_single_device" if single else "_multinode" if job.nodes > 1 else "")
    return [
        *TUNE_RUN,
        *([_RENDEZVOUS] if job.nodes > 1 or job.per_node > 1 else []),
        f"{method}_finetune_{place}",
        "--config",
        config,
        *(word for word in job.of_runtime if word.partition("=")[0] in _OF_RUNTIME),
        *job.arguments,
    ]


def _model_of_runtime(name: str) -> str:
    """Return the model of a runtime such as torchtune-llama3.2-1b; empty for a name of another form."""
    parts = name.split("-")
    return f"{parts[1].replace('.', '_')}/{parts[2].upper()}" if len(parts) == 3 else ""


def _adapter(arguments: Sequence[str]) -> str:
    """Return the way of training: lora, qlora, or empty for all weights."""
    if _is_enabled(_QUANTIZED, arguments) and not _is_enabled(_DORA, arguments):
        return "qlora"
    return "lora" if any(_LORA in word for word in arguments) else ""


def _is_enabled(setting: str, arguments: Sequence[str]) -> bool:
    pairs = (word.partition("=") for word in arguments)
    return any(setting in name and value.strip().lower() == "true" for name, _, value in pairs)


def _tune_problems(job: TuneJob, model: str, adapter: str, single: bool) -> Iterator[Problem]:
    if model not in _MODELS:
        message = f"is {job.runtime!r}, expected torchtune-MODEL-SIZE of {', '.join(_MODELS)}, or write a whole command"
        yield Problem("spec.runtimeRef.name", message)
        return
    if job.nodes > 1 and (adapter or model != _OF_SEVERAL_NODES):
        yield Problem("spec.trainer.numNodes", f"is {job.nodes}, expected 1 for {adapter or 'all weights'} of {model}")
    if adapter == "qlora" and (model == _NO_QLORA or (model in _ONE_GPU_QLORA and not single)):
        how = "" if model == _NO_QLORA else " with more than one GPU"
        yield Problem("spec.trainer.args", f"has {_QUANTIZED}, which torchtune does not support for {model}{how}")
    for index, word in enumerate(job.arguments):
        if word.partition("=")[0] in _OF_RUNTIME:
            yield Problem(f"spec.trainer.args[{index}]", f"is {word!r}, which only the runtime sets; remove it")
