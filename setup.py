"""Name each Cython module of ``src/farpool/native`` explicitly; everything else is in ``pyproject.toml``.

The folder that ``native`` links to is called ``cython``, so it must never become a package of that name:
each extension therefore gets its full name here.
"""

import os
import subprocess
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

NATIVE = Path("src/farpool/native")
VERBS = {"verbs", "rdma_lane", "rdma_region", "rdma_flight", "rdma_pipeline", "verbs_limits", "verbs_stub"}
TLS = {"tls", "tls_cipher"}
MORE_FLAGS = os.environ.get("FARPOOL_CFLAGS", "").split()
"""After ours, and for the linker too: ``make sanitize`` sets them."""


def has_header(header: str, minimum: str = "") -> bool:
    """Tell whether the compiler finds *header*, and whether the condition *minimum* holds after it."""
    compiler = os.environ.get("CC", "cc").split()
    probe = f"#include <{header}>\n" + (f"#if !({minimum})\n#error old\n#endif\n" if minimum else "")
    command = [*compiler, "-E", "-xc", "-"]
    return subprocess.run(command, input=probe.encode(), capture_output=True, check=False).returncode == 0  # noqa: S603


# Built only where their headers are: the rest works without.
without: set[str] = set()
if not has_header("infiniband/verbs.h"):
    print("farpool: no <infiniband/verbs.h>: building without rdma (install libibverbs-dev to have it)")
    without |= VERBS
if not has_header("openssl/ssl.h", "OPENSSL_VERSION_NUMBER >= 0x10101000L"):
    print("farpool: no <openssl/ssl.h> of 1.1.1 or later: building without TLS (install libssl-dev to have it)")
    without |= TLS


def libraries_of(module: str) -> list[str]:
    """Return what *module* is linked with."""
    return ["pthread", *(["ibverbs"] if module in VERBS else []), *(["ssl", "crypto"] if module in TLS else [])]


extensions = [
    Extension(
        f"farpool.native.{source.stem}",
        [str(source)],
        libraries=libraries_of(source.stem),
        extra_compile_args=["-O3", "-g1", "-fno-strict-aliasing", *MORE_FLAGS],
        extra_link_args=MORE_FLAGS,
        define_macros=[("_GNU_SOURCE", None)],
    )
    for source in sorted(NATIVE.glob("*.pyx"))
    if source.stem not in without
]

setup(
    ext_modules=cythonize(
        extensions,
        include_path=["src"],
        build_dir="build",
        annotate=False,
        compiler_directives={
            "language_level": 3,
            # Not freethreading_compatible: counts such as CxlRegion.busy are kept under the GIL, so an interpreter
            # without one must turn it on.
            "embedsignature": True,
            # Signatures that tests/unit/test_stubs.py can parse.
            "embedsignature.format": "python",
        },
    ),
    options={"build_ext": {"parallel": True}},
)
