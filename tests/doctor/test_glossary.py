"""Words of other languages, read as English ones."""

from __future__ import annotations

import pytest

from qnnmem.doctor.logs.glossary import in_english
from qnnmem.doctor.logs.reading import Chosen, read, says_well


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("QNN 内存不足, 无法创建上下文", "mem_unknown"),
        ("QNN メモリ不足で初期化できません", "mem_unknown"),
        ("QNN 메모리 부족으로 그래프 생성 실패", "mem_unknown"),
        ("QNN: nicht genug Speicher für den Kontext", "mem_unknown"),
        ("没有打开/dev/adsprpc-smd的权限", "access_denied"),
        ("/dev/dma_heap/systemを開く権限がない", "access_denied"),
        ("/dev/fastrpc-cdsp 권한 없음", "access_denied"),
        ("Die Datei libQnnHtpV68Skel.so fehlt", "skel_missing"),
        ("找不到 libQnnHtpV73Skel.so", "skel_missing"),
        ("等待DSP响应超时(5000ms)", "timeout"),
    ],
)
def test_a_cause_is_named_in_any_of_them(text: str, cause: str) -> None:
    """As in English, where somebody copied the message; some say so without a word of failure."""
    found = read(text.encode(), Chosen.EACH) or read(text.encode(), Chosen.ASSUMED)
    assert found is not None
    assert found.cause == cause


@pytest.mark.parametrize(
    "text", ["推理完成, 无错误, 平均 5.3 ms", "kein Fehler, alle 50 erfolgreich"]
)
def test_good_news_is_good_news(text: str) -> None:
    """Also what did not happen is read."""
    assert read(text.encode(), Chosen.EACH) is None
    assert says_well(text.encode())


def test_english_stays_as_it_is() -> None:
    """Names of calls and files, too."""
    text = "qnnmem_register failed for /data/local/tmp/model.bin, 42 bytes"
    assert in_english(text) is text
