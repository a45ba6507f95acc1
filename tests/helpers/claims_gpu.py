"""A pytest plugin: MLX says that its default device is a GPU, and goes on computing on the CPU.

For what a solution or a command decides by the device. `set_default_device` moves it, as it does on a Mac.
"""

import mlx.core as mx

_GPU = mx.Device(mx.gpu, 0)
_real_device, _real_set, _real_stream = mx.default_device, mx.set_default_device, mx.default_stream
_claimed = [_GPU]


def _set(device: mx.Device | mx.DeviceType) -> None:
    _claimed[0] = _GPU if device in (_GPU, mx.gpu) else mx.Device(mx.cpu, 0)


def _stream(device: mx.Device | mx.DeviceType) -> mx.Stream:
    return _real_stream(mx.cpu)


mx.default_device, mx.set_default_device, mx.default_stream = (lambda: _claimed[0]), _set, _stream
