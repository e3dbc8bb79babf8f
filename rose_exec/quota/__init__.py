"""SM quotas: how much of a GPU a process or a node may use."""

from rose_exec.quota.green import GreenQuota
from rose_exec.quota.mps import MpsDaemon, MpsError, MpsStatus, daemon
from rose_exec.quota.mps_levels import MpsQuota, client_sms, sms_by_percent
from rose_exec.quota.partitions import Partitions, TorchPartitions
from rose_exec.quota.quota import Quota, QuotaError

__all__ = [
    "GreenQuota",
    "MpsDaemon",
    "MpsError",
    "MpsQuota",
    "MpsStatus",
    "Partitions",
    "Quota",
    "QuotaError",
    "TorchPartitions",
    "client_sms",
    "daemon",
    "sms_by_percent",
]
