"""`spec.logs` and `spec.checkpoint`: claims, folders and object stores that outlive pods."""

from typing import Annotated, Any

from pydantic import Field

from ..contract import CHECKPOINT_DIR
from .base import ObjectName, Rule, Schema, SpecModel
from .metrics_rule import MOST_CHARACTERS, NONE

EmptyDir = Annotated[dict[str, Any], Schema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]


class ClaimSource(SpecModel):
    """A PersistentVolumeClaim of the job's namespace."""

    claim_name: ObjectName = Field(description="Name of the claim.")


# A store that every pod reaches: files and memory are a process's own.
STORE_URI = r"^(s3|s3a|gs|gcs|az|abfs|abfss)://[^\s/?#]+(/[^\s?#]*)?$"


class SecretSource(SpecModel):
    """A Secret of the job's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")


class Logs(SpecModel):
    """Where the launcher keeps every rank's log. Default: an emptyDir, gone with the launcher's pod."""

    persistent_volume_claim: ClaimSource | None = Field(
        default=None,
        description="Claim of the job's namespace that only the launcher mounts; ReadWriteOnce is enough.",
    )
    empty_dir: EmptyDir | None = Field(default=None, description="An emptyDir's own fields, such as sizeLimit.")
    report: bool = Field(
        default=False,
        description="The launcher ends each attempt by writing it as one HTML page, report.html, beside its logs.",
    )
    uri: str | None = Field(
        default=None,
        pattern=STORE_URI,
        max_length=1024,
        description="Place in an object store to which the launcher copies logs while the job runs and at its "
        "end, for example s3://bucket/logs (also gs:// and az://). dtj logs reads them there when no pod is left. "
        "Maturity: s3 Beta, gs Experimental, az Experimental.",
    )
    secret_ref: SecretSource | None = Field(
        default=None,
        description="Secret of the job's namespace whose keys are variables of the launcher, such as "
        "AWS_ACCESS_KEY_ID. Unset: the identity of the pod's service account.",
    )

    metrics: str | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_CHARACTERS,
        description="Regular expression (Python's) with named groups, which says what a line that a rank prints "
        "reports: step, total (steps), epoch, loss, samples, rate (samples a second), any other a metric of that "
        "name. It takes the place of the forms that agents know (tqdm, Keras, images/sec); none: no line is read. "
        "What ranks report by rt.report comes first. Maturity: Beta.",
    )

    RULES = (
        # For the models spec/parse.py says it, with what is wrong.
        Rule(
            cel=f"!has(self.metrics) || self.metrics == '{NONE}' || self.metrics.contains('(?P<')",
            message="metrics needs a named group, such as (?P<loss>\\S+)",
            path="metrics",
        ),
        Rule(
            cel="!(has(self.persistentVolumeClaim) && has(self.emptyDir))",
            message="give persistentVolumeClaim or emptyDir, not both",
            path="emptyDir",
            holds=lambda v: v.persistent_volume_claim is None or v.empty_dir is None,
        ),
        Rule(
            cel="!has(self.secretRef) || has(self.uri)",
            message="secretRef is for uri; give uri or remove it",
            path="secretRef",
            holds=lambda v: v.secret_ref is None or v.uri is not None,
        ),
    )


class Checkpoint(SpecModel):
    """Where checkpoints outlive an attempt: a claim that every pod mounts, with several nodes ReadWriteMany, an
    object store, or both."""

    persistent_volume_claim: ClaimSource | None = Field(
        default=None,
        description="Claim of the job's namespace that all pods mount; with several nodes it is ReadWriteMany.",
    )
    uri: str | None = Field(
        default=None,
        pattern=STORE_URI,
        max_length=1024,
        description="Place in an object store, for example s3://bucket/path (also gs:// and az://). Below it the "
        "job has a folder of its own, <job>-<uid>, which the training code is given as "
        "RINGTRAIN_CHECKPOINT_URI. The image needs ringtrain[s3], ringtrain[gcs] or ringtrain[azure]. "
        "Maturity: s3 Beta, gs Experimental, az Experimental.",
    )
    secret_ref: SecretSource | None = Field(
        default=None,
        description="Secret of the job's namespace whose keys are variables of the ranks and the evaluator, such "
        "as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. Unset: the identity of the pods' service account.",
    )
    mount_path: str = Field(
        default=CHECKPOINT_DIR,
        pattern=r"^/[^:]*[^:/]$",
        max_length=1024,
        description="Where pods mount the claim. In it the job has a folder of its own, <job>-<uid>, which the "
        "training code is given as RINGTRAIN_CHECKPOINT_DIR.",
    )
    restore_from: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        max_length=100,
        description="A job that has left checkpoints on the claim, or below the URI, or its folder there: "
        "training begins with its newest checkpoint as long as this job has none. Unset: a new job begins "
        "without.",
    )

    RULES = (
        Rule(
            cel="has(self.persistentVolumeClaim) || has(self.uri)",
            message="give persistentVolumeClaim, uri or both",
            path="uri",
            holds=lambda c: c.persistent_volume_claim is not None or c.uri is not None,
        ),
        Rule(
            cel="!has(self.secretRef) || has(self.uri)",
            message="secretRef is for uri; give uri or remove it",
            path="secretRef",
            holds=lambda c: c.secret_ref is None or c.uri is not None,
        ),
    )
