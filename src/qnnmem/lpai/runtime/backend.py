"""`QnnBackend` of the simulated runtime: memory requirements and findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from qnnmem.contract.leaks import Resource, of_process
from qnnmem.contract.regions import ClientBuffer, next_serial
from qnnmem.contract.rules import FindingLog, finding
from qnnmem.errors import UsageError
from qnnmem.finding import Finding
from qnnmem.lpai.profiles import Mode, Profile
from qnnmem.lpai.profiles import profile as make_profile
from qnnmem.lpai.runtime.descriptors import CUSTOM, AlignmentReq, Config, HwInfo, Property
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import BackendOption, BackendProperty, HwVersion, LogLevel, Target

Log = Callable[[LogLevel, str], None]
T = TypeVar("T")
Answer = TypeVar("Answer")


class Backend:
    """A simulated LPAI backend; `findings` contains all broken rules."""

    def __init__(self, profile: Profile | None = None, log: Log | None = None) -> None:
        if not isinstance(profile, Profile | None):
            raise UsageError(f"{shown(profile)} is not a profile; use qnnmem.lpai.profiles.profile")
        if log is not None and not callable(log):
            raise UsageError(f"{shown(log)} must be a function of a log level and a line")
        self.profile = profile or make_profile()
        self.log: Log = ignore_log if log is None else log
        self.findings = FindingLog()
        self.alignment_queried_at: int | None = None  # serial number of the first query
        self.is_freed = False
        self._resource = Resource("backend", "L1", "the backend made at {at}", of_process())

    @classmethod
    def create(
        cls,
        configs: Iterable[Config | None] | None = None,
        *,
        profile: Profile | None = None,
        log: Log | None = None,
    ) -> Backend:
        """Return a backend (`QnnBackend_create`); the configs can select other hardware."""
        backend = cls(profile, log)
        for config in until_null(configs, Config):
            backend._configure(config)
        return backend

    def get_property(self, properties: Iterable[Property | None]) -> None:
        """Fill in all property values, or none if a property fails (`QnnBackend_getProperty`)."""
        self.check_alive("QnnBackend_getProperty")
        for answer in fill_in(properties, self._answer):
            if isinstance(answer, AlignmentReq) and self.alignment_queried_at is None:
                self.alignment_queried_at = next_serial()

    def device_create(self) -> None:
        """Raise QnnError unless the profile supports devices (`QnnDevice_create`)."""
        if not self.profile.device_create:
            sentence = "LPAI does not support QnnDevice_create"
            cure = "pass NULL as the device"
            self.refuse(1000, "R14", sentence, "QnnDevice_create", cure=cure)

    def get_platform_info(self) -> dict[str, object]:
        """Return the hardware version and the process domain (`QnnDevice_getPlatformInfo`)."""
        return {"hwVersion": self.profile.hw_version.word, "domainId": 0, "domainName": "adsp"}

    def free(self) -> None:
        """Free the backend (`QnnBackend_free`); report its live objects, which become invalid."""
        self.check_alive("QnnBackend_free")
        self.is_freed = True
        leaks = list(self._resource.left("was not freed before the backend", "L1"))
        self._resource.freed()
        for leak in leaks:
            self.note(leak)

    def disown(self) -> None:
        """Do not report the backend as a leak; call this if its owner failed."""
        self._resource.freed()

    def track(self) -> None:
        """Report the backend as a leak unless it is freed, even if nothing is created with it."""
        self._resource.keep()

    def makes(self, kind: str, rule: str, what: str) -> Resource:
        """Return a new resource that must be freed before the backend."""
        self._resource.keep()
        return self._resource.part(kind, rule, what)

    def check_alignment_query(self, buffer: ClientBuffer, what: str, call: str) -> bool:
        """Report R1 if memory was allocated before the alignment was queried.

        Return whether R1 was reported. For memory from outside the heaps, the time of allocation is
        unknown, so any earlier query is sufficient. Memory that was allocated correctly for one
        backend also counts as correct for other backends with the same alignment.
        """
        block, queried = buffer.allocation, self.alignment_queried_at
        pair = (self.profile.start_alignment, self.profile.size_alignment)
        if queried is None:
            sentence = f"{what} was allocated without a query of the alignment"
        elif block is not None and block.serial < queried and pair not in block.known_alignments:
            sentence = f"{what} was allocated before the alignment was queried"
        else:
            if block is not None:
                block.known_alignments.add(pair)
            return False
        self.note(finding("R1", sentence, call, buffer=what, address=buffer.address))
        return True

    def check_alive(self, call: str) -> None:
        """Fail a call if the backend was freed."""
        if self.is_freed:
            self.refuse(4011, "R16", "the backend was freed", call)

    def note(self, found: Finding) -> None:
        """Store a finding and log it."""
        self.findings.note(found)
        self.log(LogLevel.WARN, f"[{found.rule}] {found.sentence}")

    def fail(self, code: int, found: Finding) -> NoReturn:
        """Store a finding and make the call fail with a code."""
        self.findings.note(found)
        error = qnn_error(code, found)
        self.log(LogLevel.ERROR, str(error))
        raise error

    def refuse(self, code: int, rule: str, sentence: str, call: str, **details: Any) -> NoReturn:
        """Make a call fail with a code, and store the broken rule as a finding."""
        self.fail(code, finding(rule, sentence, call, **details))

    def _configure(self, config: Config) -> None:
        inner = config.value
        is_custom = config.option == CUSTOM and isinstance(inner, Config)
        if not is_custom or inner.option != BackendOption.CUSTOM_CFG_HW_INFO:
            self._unknown("config option", inner.option if is_custom else config.option, 4004)
        info = inner.value
        has_target = isinstance(info, HwInfo) and isinstance(info.target, int)
        if not has_target or info.target not in _MODES:
            sentence = "the hardware info has a target that this backend does not support"
            self.refuse(4012, "R14", sentence, "QnnBackend_create")
        number = info.hw_version if isinstance(info.hw_version, int) else None
        versions = [v for v in HwVersion if v >= HwVersion.V4 and v == number]
        if not versions:
            sentence = (
                f"the hardware info has version {shown(info.hw_version)}; it must be v4 or later"
            )
            self.refuse(4012, "R14", sentence, "QnnBackend_create")
        self.profile = _profile_for(self.profile, _MODES[info.target], versions[0])

    def _answer(self, query: Property) -> AlignmentReq | bool:
        inner = query.value
        if query.option != CUSTOM or not isinstance(inner, Property):
            self._unknown("property", query.option, 4004)
        if inner.option == BackendProperty.GET_PROP_ALIGNMENT_REQ:
            return AlignmentReq(self.profile.start_alignment, self.profile.size_alignment)
        if inner.option == BackendProperty.GET_PROP_REQUIRE_PERSISTENT_BINARY:
            return self.profile.require_persistent_binary
        # Properties that QNN documents without their payload.
        named = (BackendProperty.GET_PROP_ENPU_CORE_NUM, BackendProperty.GET_PROP_ENPU_CORE_INFO)
        self._unknown("property", inner.option, 4003 if inner.option in named else 4004)

    def _unknown(self, what: str, option: int, code: int) -> NoReturn:
        why = "known, but its payload is not public" if code == 4003 else "unknown to this backend"
        sentence = f"{what} {option} is {why}"
        call = "QnnBackend_getProperty" if what == "property" else "QnnBackend_create"
        self.refuse(code, "R14", sentence, call)


def _profile_for(old: Profile, mode: Mode, version: HwVersion) -> Profile:
    """Return the profile for another mode and version; keep the settings that depend on neither."""
    if mode is old.mode:
        return replace(old, hw_version=version)
    return replace(
        make_profile(mode, version, lenient_scratch=old.lenient_scratch),
        alignment=old.alignment,
        start_alignment=old.start_alignment,
        size_alignment=old.size_alignment,
        core_count=old.core_count,
        inference_us=old.inference_us,
        async_blocks=old.async_blocks,
        shared_scratch=old.shared_scratch,
    )


_MODES = {Target.X86: Mode.X86, Target.ARM: Mode.ARM, Target.ADSP: Mode.ADSP}


# Iterable types that are never lists of configs.
_NOT_LISTS = (str, bytes, bytearray, memoryview)


def until_null(items: Iterable[T | None] | None, kind: type[T]) -> Iterator[T]:
    """Yield the items of a NULL-terminated array up to the first None."""
    if items is None:
        return
    is_one_value = isinstance(items, _NOT_LISTS) or hasattr(items, "__array__")
    if is_one_value or not isinstance(items, Iterable):
        raise UsageError(f"{shown(items)} is not a list of {kind.__name__} with None at its end")
    for item in items:
        if item is None:
            return
        if not isinstance(item, kind):
            raise UsageError(f"{shown(item)} is not a {kind.__name__}")
        if isinstance(item, Config | Property):
            _check_option(item)
        yield item


def fill_in(
    properties: Iterable[Property | None], answer: Callable[[Property], Answer]
) -> list[Answer]:
    """Fill in all property values, or none if a property fails; return the values."""
    queried = list(until_null(properties, Property))
    values = [answer(query) for query in queried]
    for query, value in zip(queried, values, strict=True):
        query.value.value = value
    return values


def _check_option(item: Config | Property) -> None:
    inner = item.value if isinstance(item.value, Config | Property) else item
    for option in (item.option, inner.option):
        if not isinstance(option, int):
            raise UsageError(f"{shown(option)} is not an option; QNN's options are whole numbers")


def shown(value: object) -> str:
    """Return a short printable form of a value for messages."""
    text = repr(value)
    return text if len(text) <= 40 and text.isprintable() else f"a {type(value).__name__}"


def ignore_log(_level: LogLevel, _text: str) -> None:
    """Ignore a log line."""
