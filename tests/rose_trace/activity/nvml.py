"""NVML with GPUs of the test's choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pynvml


@dataclass
class Nvml:
    """Stands in for pynvml; a handle is the UUID.

    Attributes:
        names: Product name by UUID, in NVML's order.
        busy: Utilisation by UUID [percent].
        without_gpm: UUIDs without GPM.
    """

    names: dict[str, str]
    busy: dict[str, int] = field(default_factory=dict[str, int])
    without_gpm: set[str] = field(default_factory=set[str])
    NVMLError = pynvml.NVMLError
    NVML_GPM_METRICS_GET_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION
    NVML_GPM_METRIC_SM_UTIL = pynvml.NVML_GPM_METRIC_SM_UTIL
    NVML_SUCCESS = pynvml.NVML_SUCCESS
    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t  # noqa: N815
    allocated: int = 0

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return list(self.names)[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return f"by-uuid:{uuid}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return self.names[handle]

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> pynvml.c_nvmlUtilization_t:  # noqa: N802
        rates = pynvml.c_nvmlUtilization_t()
        rates.gpu = self.busy[handle]
        return rates

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> pynvml.c_nvmlGpmSupport_t:  # noqa: N802
        support = pynvml.c_nvmlGpmSupport_t()
        support.isSupportedDevice = handle not in self.without_gpm
        return support

    def nvmlGpmSampleAlloc(self) -> object:  # noqa: N802
        self.allocated += 1
        return None

    def nvmlGpmSampleGet(self, handle: str, sample: object) -> None:  # noqa: N802
        pass

    def nvmlGpmMetricsGet(self, query: Any) -> None:  # noqa: N802
        query.metrics[0].value = 25.0

    def nvmlGpmSampleFree(self, sample: object) -> None:  # noqa: N802
        self.allocated -= 1
