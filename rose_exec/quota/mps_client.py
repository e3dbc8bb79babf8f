"""A fresh client of an MPS daemon: prints how many SMs it may use, then ends.

Run by its path, with nothing imported but the standard library, so that a hundred of them are cheap.
"""

import ctypes
import sys

_MULTIPROCESSOR_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


def read_sms(ordinal: int) -> int:
    """SMs of a device as this process sees them; ends the process where CUDA does not start."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit(str(error))

    def ask(name: str, *args: object) -> None:
        code = getattr(cuda, name)(*args)
        if code:
            sys.exit(f"{name}: CUDA error {code}")

    device, context, sms = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    ask("cuInit", 0)
    ask("cuDeviceGet", ctypes.byref(device), ordinal)
    ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    ask("cuCtxSetCurrent", context)
    ask("cuDeviceGetAttribute", ctypes.byref(sms), _MULTIPROCESSOR_COUNT, device)
    return sms.value


if __name__ == "__main__":
    sys.stdout.write(f"{read_sms(int(sys.argv[1]))}\n")
