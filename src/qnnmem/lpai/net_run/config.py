"""The settings of a config file as the configs that a client of QNN passes."""

from __future__ import annotations

from qnnmem.lpai.config.read import RunConfig
from qnnmem.lpai.runtime.descriptors import Config, CoreAffinityCfg, PerfCfg, custom
from qnnmem.qnn.enums import (
    BinaryCompatibility,
    ClientPerfType,
    ContextCustomOption,
    ContextOption,
    CoreAffinity,
    GraphConfigOption,
    GraphOption,
    MemType,
    Priority,
)


def context_configs(config: RunConfig | None, mem_type: MemType) -> list[Config]:
    """What `QnnContext_createFromBinary` is told."""
    found: list[Config] = []
    if config is not None:
        settings = config.context
        strict = settings.cache_compatibility_mode == "strict"
        check = BinaryCompatibility.STRICT if strict else BinaryCompatibility.PERMISSIVE
        found = [
            Config(ContextOption.PERSISTENT_BINARY, settings.is_persistent_binary),
            Config(ContextOption.PRIORITY, _priority(settings.context_priority)),
            Config(ContextOption.BINARY_COMPATIBILITY, check),
            Config(ContextOption.ASYNC_EXECUTION_QUEUE_DEPTH, settings.async_execute_queue_depth),
            Config(ContextOption.MEMORY_LIMIT_HINT, settings.memory_limit_hint),
        ]
        if settings.enable_graphs is not None:
            found.append(Config(ContextOption.ENABLE_GRAPHS, settings.enable_graphs))
    if mem_type is MemType.TCM:
        found.append(custom(ContextCustomOption.MODEL_BUFFER_MEM_TYPE, mem_type))
    return found


def graph_configs(config: RunConfig | None, name: str) -> list[Config]:
    """What `QnnGraph_setConfig` is told about performance, cores and priority."""
    if config is None:
        return []
    found = [
        Config(GraphConfigOption.PRIORITY, _priority(entry.graph_priority))
        for entry in config.graphs
        if entry.graph_name == name
    ]
    if config.lpai.file is None:
        return found
    run = config.lpai.execute
    perf = PerfCfg(run.fps, run.ftrt_ratio, ClientPerfType[run.client_type.upper()])
    cores = CoreAffinityCfg(CoreAffinity[run.affinity.upper()], run.core_selection)
    return [
        *found,
        custom(GraphOption.SET_CFG_PERF_CFG, perf),
        custom(GraphOption.SET_CFG_CORE_AFFINITY, cores),
    ]


def _priority(word: str) -> Priority:
    return Priority[word.upper()]
