"""Models of `spec.logs` and `spec.checkpoint`: claims and object stores whose content stays when pods end."""

from typing import Annotated, Any

from pydantic import Field

from ..contract import CHECKPOINT_DIR
from .base import ObjectName, Rule, Schema, SpecModel
from .metrics_rule import MOST_CHARACTERS, NONE

EmptyDir = Annotated[dict[str, Any], Schema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]


class ClaimSource(SpecModel):
    """A PersistentVolumeClaim in the job's namespace."""

    claim_name: ObjectName = Field(description="Name of the PersistentVolumeClaim.")


# Only stores that every pod can reach; file:// and memory:// are local to a process.
STORE_URI = r"^(s3|s3a|gs|gcs|az|abfs|abfss)://[^\s/?#]+(/[^\s?#]*)?$"
MOUNT_PATH = r"^/[^:]*[^:/]$"


class SecretSource(SpecModel):
    """A Secret of the job's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")


class Logs(SpecModel):
    """Storage for the logs of all ranks. Default: an emptyDir, which is deleted with the launcher's pod."""

    persistent_volume_claim: ClaimSource | None = Field(
        default=None,
        description="PersistentVolumeClaim in the job's namespace that only the launcher mounts; ReadWriteOnce is "
        "enough.",
    )
    empty_dir: EmptyDir | None = Field(default=None, description="Fields of the emptyDir for logs, such as sizeLimit.")
    report: bool = Field(
        default=False,
        description="Write an HTML page, report.html, into the logs at the end of each attempt.",
    )
    uri: str | None = Field(
        default=None,
        pattern=STORE_URI,
        max_length=1024,
        description="Place in an object store to which the launcher copies logs while the job runs and at its end, "
        "for example s3://bucket/logs (also gs:// and az://). dtj logs reads them there after the pods "
        "are deleted. Maturity: s3 Beta, gs Experimental, az Experimental.",
    )
    secret_ref: SecretSource | None = Field(
        default=None,
        description="Secret of the job's namespace whose keys become environment variables of the launcher, such as "
        "AWS_ACCESS_KEY_ID. Unset: the launcher uses the identity of its pod's service account.",
    )

    metrics: str | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_CHARACTERS,
        description="Regular expression (Python syntax) with named groups, which extracts values from printed lines: "
        "step, total (steps), epoch, loss, samples, rate (samples per second); any other group is a metric of that "
        "name. It replaces the built-in formats (tqdm, Keras, images/sec). With the value none, no line is read. "
        "Values from rt.report take precedence. Maturity: Beta.",
    )

    RULES = (
        # In Python, spec/parse.py reports this, with the reason.
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
    """Storage for checkpoints that outlives an attempt: a claim that every pod mounts, an object store, or both. With
    several nodes the claim must be ReadWriteMany.
    """

    persistent_volume_claim: ClaimSource | None = Field(
        default=None,
        description="PersistentVolumeClaim in the job's namespace that all pods mount. It must be ReadWriteMany if the "
        "pods run on several nodes.",
    )
    uri: str | None = Field(
        default=None,
        pattern=STORE_URI,
        max_length=1024,
        description="Place in an object store, for example s3://bucket/path (also gs:// and az://). The job writes to "
        "the folder <job>-<uid> below it, which the training code gets as RINGTRAIN_CHECKPOINT_URI. The image needs "
        "ringtrain[s3], ringtrain[gcs] or ringtrain[azure]. Maturity: s3 Beta, gs Experimental, az Experimental.",
    )
    secret_ref: SecretSource | None = Field(
        default=None,
        description="Secret of the job's namespace whose keys become variables of the ranks and the evaluator, such "
        "as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. Unset: these processes use the identity of their pods' service "
        "account.",
    )
    mount_path: str = Field(
        default=CHECKPOINT_DIR,
        pattern=MOUNT_PATH,
        max_length=1024,
        description="Path at which pods mount the claim. The job writes to the folder <job>-<uid> in it, which the "
        "training code gets as RINGTRAIN_CHECKPOINT_DIR.",
    )
    restore_from: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        max_length=100,
        description="Name of another job with checkpoints on the same claim or below the same URI, or name of that "
        "job's folder there. While this job has no checkpoint, training starts from the newest checkpoint of the "
        "other job. Unset: a new job starts without a checkpoint.",
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
