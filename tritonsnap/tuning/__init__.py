"""Launch configs, looked up and never measured here (`tritonsnap.autotune` measures)."""

from tritonsnap.tuning.cache import CacheError, ConfigFile, Entry, Milliseconds
from tritonsnap.tuning.device import TARGETS, Device, jax_device, torch_device
from tritonsnap.tuning.lookup import (
    Config,
    Found,
    Sizes,
    bucket_of,
    find_config,
    locate_config,
    shipped_directory,
    user_directory,
)
from tritonsnap.tuning.source import source_hash

__all__ = [
    "TARGETS",
    "CacheError",
    "Config",
    "ConfigFile",
    "Device",
    "Entry",
    "Found",
    "Milliseconds",
    "Sizes",
    "bucket_of",
    "find_config",
    "jax_device",
    "locate_config",
    "shipped_directory",
    "source_hash",
    "torch_device",
    "user_directory",
]
