"""Fingerprint of a machine: versions, devices, environment variables, and what is missing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata

from ddpbench import __version__
from ddpbench.machine.gpu import driver_version, gpu_names
from ddpbench.machine.host import cpu_name, host_memory_bytes, os_name, usable_cores
from ddpbench.record.environment import DeviceType, Environment, RankPlacement, Software, Transport
from ddpbench.record.loaders import DALI_SPEC
from ddpbench.record.text import mask_text


def installed_version(*packages: str) -> str | None:
    """The version of the first of ``packages`` that is installed, without importing it."""
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def collect_software(cuda: bool) -> Software:
    """The software versions of this rank. Imports torch."""
    import torch

    nccl = ".".join(str(part) for part in torch.cuda.nccl.version()) if cuda else None
    return Software(
        ddpbench=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        torchvision=installed_version("torchvision"),
        accelerate=installed_version("accelerate"),
        dali=installed_version(*DALI_SPEC.packages),
        cuda=torch.version.cuda if cuda else None,
        cudnn=str(torch.backends.cudnn.version()) if cuda else None,
        nccl=nccl,
        driver=driver_version() if cuda else None,
    )


def collect_environment(
    software: Software,
    placements: list[RankPlacement],
    launcher: str,
    backend: str,
    device_type: DeviceType,
    health_unavailable_reason: str,
    transport: list[Transport],
) -> Environment:
    """The environment of a job whose ranks run at ``placements``, as this rank sees it."""
    return Environment(
        software=software,
        world_size=len(placements),
        nodes=len({place.node_rank for place in placements}),
        launcher=launcher,
        backend=backend,
        device_type=device_type,
        placements=placements,
        os=os_name(),
        cpu=cpu_name(),
        variables=speed_variables(),
        transport=transport,
        health_unavailable_reason=health_unavailable_reason,
    )


def describe_environment() -> list[tuple[str, str, str]]:
    """Rows (name, value, how to install it if missing) of ``ddpbench env``. Does not import torch."""
    gpus = gpu_names()
    rows = [
        ("ddpbench", __version__, ""),
        ("python", f"{platform.python_version()} ({sys.executable})", ""),
        ("torch", *_value_or_hint(installed_version("torch"), "pip install torch torchvision")),
        ("torchvision", *_value_or_hint(installed_version("torchvision"), "pip install torchvision")),
        ("accelerate", *_value_or_hint(installed_version("accelerate"), "pip install accelerate")),
        ("DALI", *_value_or_hint(installed_version(*DALI_SPEC.packages), "pip install 'ddpbench[dali-cuda13]' for --loader dali-cpu")),
        ("NVIDIA driver", *_value_or_hint(driver_version(), "without one, training runs on the CPU")),
        ("GPUs", *_value_or_hint(f"{len(gpus)} x {gpus[0]}" if gpus else None, "NVML finds none")),
        ("CPU", cpu_name(), ""),
        ("usable cores", f"{usable_cores():g} of {os.cpu_count()}", ""),
        ("memory", f"{host_memory_bytes() / 2**30:.0f} GiB", ""),
        ("system", os_name(), ""),
    ]
    return rows + [(name, value, "") for name, value in speed_variables().items()]


def _value_or_hint(value: str | None, hint: str) -> tuple[str, str]:
    return (value, "") if value else ("missing", hint)


_NAMES = """
OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OMP_SCHEDULE OMP_DYNAMIC OMP_WAIT_POLICY OMP_THREAD_LIMIT
GOMP_CPU_AFFINITY GOMP_SPINCOUNT KMP_AFFINITY KMP_BLOCKTIME KMP_HW_SUBSET
MKL_NUM_THREADS MKL_DYNAMIC MKL_ENABLE_INSTRUCTIONS OPENBLAS_NUM_THREADS ONEDNN_MAX_CPU_ISA ATEN_CPU_CAPABILITY

CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_DEVICE_MAX_CONNECTIONS CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING
CUDA_AUTO_BOOST CUDA_FORCE_PTX_JIT CUDA_CACHE_DISABLE CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_SCALE_LAUNCH_QUEUES
CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT NVIDIA_TF32_OVERRIDE CUBLAS_WORKSPACE_CONFIG CUBLASLT_WORKSPACE_SIZE
CUBLAS_LOGINFO_DBG CUDNN_LOGINFO_DBG CUDNN_LOGLEVEL_DBG

PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_NVML_BASED_CUDA_CHECK PYTORCH_JIT
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_PREFER_CUBLASLT TORCH_CUBLAS_WORKSPACE_CACHE TORCH_LINALG_PREFER_CUSOLVER
TORCH_CUDNN_V8_API_DISABLED TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT TORCH_CUDNN_V8_API_DEBUG TORCH_COMPILE_DISABLE TORCHDYNAMO_DISABLE
TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_COORDINATE_DESCENT_TUNING TORCHINDUCTOR_FREEZING TORCHINDUCTOR_FX_GRAPH_CACHE
TORCH_DISTRIBUTED_DEBUG TORCH_CPP_LOG_LEVEL TORCH_SHOW_CPP_STACKTRACES
TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BLOCKING_WAIT
TORCH_NCCL_COORD_CHECK_MILSEC TORCH_NCCL_CUDA_EVENT_CACHE TORCH_NCCL_DESYNC_DEBUG TORCH_NCCL_DUMP_ON_TIMEOUT
TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_NCCL_HIGH_PRIORITY
TORCH_NCCL_NAN_CHECK TORCH_NCCL_PROPAGATE_ERROR TORCH_NCCL_RETHROW_CUDA_ERRORS TORCH_NCCL_TRACE_BUFFER_SIZE
TORCH_NCCL_USE_COMM_NONBLOCKING TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC

NCCL_ALGO NCCL_PROTO NCCL_NTHREADS NCCL_BUFFSIZE NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_NRINGS NCCL_MAX_NRINGS
NCCL_MIN_CTAS NCCL_MAX_CTAS NCCL_CTA_POLICY NCCL_CGA_CLUSTER_SIZE NCCL_NCHANNELS_PER_NET_PEER
NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_P2P_DIRECT_DISABLE NCCL_P2P_USE_CUDA_MEMCPY NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_LL_THRESHOLD
NCCL_P2P_PXN_LEVEL NCCL_PXN_DISABLE NCCL_PXN_C2C NCCL_NVB_DISABLE NCCL_SHM_DISABLE
NCCL_NVLS_ENABLE NCCL_NVLSTREE_MAX_CHUNKSIZE NCCL_MNNVL_ENABLE NCCL_COLLNET_ENABLE NCCL_COLLNET_NODE_THRESHOLD
NCCL_SINGLE_RING_THRESHOLD NCCL_TREE_THRESHOLD NCCL_LL_THRESHOLD NCCL_ALLOC_P2P_NET_LL_BUFFERS
NCCL_NET NCCL_NET_PLUGIN NCCL_TUNER_PLUGIN NCCL_PROFILER_PLUGIN NCCL_NETDEVS_POLICY NCCL_CROSS_NIC NCCL_DMABUF_ENABLE
NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ NCCL_NET_GDR_C2C NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS
NCCL_NET_MERGE_POLICY NCCL_SOCKET_POLL_TIMEOUT_MSEC
NCCL_SOCKET_IFNAME NCCL_SOCKET_FAMILY NCCL_SOCKET_NTHREADS NCCL_NSOCKS_PERTHREAD NCCL_OOB_NET_ENABLE NCCL_OOB_NET_IFNAME
NCCL_IB_DISABLE NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE NCCL_IB_ROCE_VERSION_NUM NCCL_IB_SL NCCL_IB_TC
NCCL_IB_FIFO_TC NCCL_IB_OOO_RQ NCCL_IB_RAIL_POLICY
NCCL_IB_TIMEOUT NCCL_IB_RETRY_CNT NCCL_IB_CUDA_SUPPORT NCCL_IB_AR_THRESHOLD NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_ECE_ENABLE
NCCL_IB_QPS_PER_CONNECTION NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_PCI_RELAXED_ORDERING NCCL_IB_MERGE_NICS NCCL_IB_MERGE_VFS
NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_WIN_ENABLE NCCL_MEM_SYNC_DOMAIN NCCL_GRAPH_REGISTER NCCL_LOCAL_REGISTER
NCCL_LEGACY_CUDA_REGISTER NCCL_GRAPH_MIXING_SUPPORT NCCL_RUNTIME_CONNECT NCCL_COMM_BLOCKING NCCL_LAUNCH_MODE
NCCL_LAUNCH_ORDER_IMPLICIT NCCL_IGNORE_CPU_AFFINITY NCCL_SET_STACK_SIZE NCCL_CHECKS_DISABLE NCCL_CHECK_POINTERS NCCL_RAS_ENABLE
NCCL_CHECK_MODE NCCL_GRAPH_STREAM_ORDERING NCCL_MULTI_RANK_GPU_ENABLE NCCL_SYM_GIN_KERNELS_ENABLE
NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_TOPO_FILE NCCL_CONF_FILE

GLOO_SOCKET_IFNAME GLOO_DEVICE_TRANSPORT TP_SOCKET_IFNAME FI_PROVIDER FI_EFA_USE_DEVICE_RDMA UCX_TLS UCX_NET_DEVICES

SLURM_JOB_ID SLURM_JOB_PARTITION SLURM_JOB_NUM_NODES SLURM_CPUS_ON_NODE SLURM_CPUS_PER_TASK SLURM_THREADS_PER_CORE
SLURM_CPU_BIND SLURM_MEM_BIND SLURM_HINT
"""

SPEED_VARIABLES = frozenset(_NAMES.split())
"""Documented names only, none of which holds a secret. A prefix match could let in a variable such as a token."""


def speed_variables(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables that affect training speed, sorted by name, with secrets in their values masked."""
    return {name: mask_text(variables[name]) for name in sorted(SPEED_VARIABLES & variables.keys())}
