"""Words of other languages that logs and people use, as English ones: read once, in one language.

Whoever asks writes half in English, names of calls and libraries stay as they are. So a phrase is
replaced where it stands; what is not listed stays.
"""

from __future__ import annotations

import re
from functools import cache

# English, and what says the same. The longer phrase wins, wherever it is listed.
_PHRASES: tuple[tuple[str, str], ...] = (
    (
        "out of memory",
        "内存不足|内存溢出|内存耗尽|内存不够|显存不足|記憶體不足|メモリ不足|メモリが足りません"
        "|メモリが足りない|메모리 부족|메모리가 부족|kein speicher mehr|keinen speicher mehr"
        "|kein speicher"
        "|keinen speicher|nicht genug speicher|nicht genügend speicher|zu wenig speicher"
        "|speichermangel"
        "|speicher voll|mémoire insuffisante|mémoire saturée|memoria insuficiente|sin memoria"
        "|недостаточно памяти|не хватает памяти|нехватка памяти",
    ),
    (
        "allocation failed",
        "分配失败|分配失敗|申请失败|割り当てに失敗|確保に失敗|할당 실패|할당에 실패",
    ),
    (
        "memory",
        "内存|記憶體|显存|メモリ|메모리|arbeitsspeicher|speicher|mémoire|memoria|памяти|память",
    ),
    (
        "failed",
        "失败|失敗|出错|실패|fehlgeschlagen|schlug fehl|schlägt fehl|gescheitert|échoué|échec|falló"
        "|fallido|не удалось|не удалась",
    ),
    ("error", "错误|錯誤|报错|エラー|오류|에러|fehlermeldung|fehler|erreur|ошибка"),
    ("exception", "异常|異常|例外|예외"),
    (
        "crashed",
        "崩溃|崩潰|闪退|クラッシュ|크래시|abgestürzt|stürzt ab|absturz|planté|se bloqueó|упал",
    ),
    ("rebooted", "死机|重启|再起動|재부팅|neu gestartet|redémarré"),
    (
        "not found",
        "找不到|未找到|没找到|没有找到|缺少|缺失|不存在|見つかりません|見つからない|存在しません"
        "|찾을 수 없|없는 파일|nicht gefunden|nicht vorhanden|introuvable|no encontrado"
        "|no se encuentra"
        "|no se encontró|не найден",
    ),
    ("missing", "fehlt|fehlen|manquant|manque|falta"),
    (
        "timed out",
        "超时|超時|逾時|タイムアウト|시간 초과|타임아웃|zeitüberschreitung|zeitlimit überschritten"
        "|délai dépassé|tiempo de espera agotado|тайм-аут|время ожидания истекло",
    ),
    (
        "cannot",
        "无法|不能|無法|できませんでした|できません|できない|수 없|konnte nicht|konnten nicht"
        "|kann nicht"
        "|können nicht|impossible de|ne peut pas|no se pudo|no puede|не может",
    ),
    (
        "not supported",
        "不支持|不支援|サポートされていません|対応していません|未対応|非対応|지원되지 않"
        "|지원하지 않|미지원"
        "|nicht unterstützt|unterstützt nicht|non pris en charge|no soportado|no compatible"
        "|не поддерживается",
    ),
    (
        "mismatch",
        "不兼容|不匹配|不一致|不符|一致しません|合っていません|불일치|맞지 않|stimmt nicht überein"
        "|stimmen nicht überein|passt nicht zu|passen nicht zu|nicht kompatibel|ne correspond pas"
        "|no coincide|не совпадает",
    ),
    (
        "permission denied",
        "权限不足|没有权限|权限被拒|权限拒绝|拒绝访问|無權限|権限がありません"
        "|権限がない|権限がなく|許可されていません"
        "|アクセスが拒否|권한이 없|권한 거부|권한이 거부|권한거부|권한 없|권한없"
        "|zugriff verweigert|keine berechtigung|nicht erlaubt"
        "|lässt nicht|accès refusé|permission refusée|acceso denegado|permiso denegado"
        "|отказано в доступе|доступ запрещ",
    ),
    ("blocks", "блокирует|блокируют|blockiert"),
    ("denied", "拒绝|拒絕|拒否|거부|verweigert|abgelehnt|refusé|denegado|отказано"),
    ("permission", "权限|権限|권한|berechtigung|zugriffsrechte"),
    ("address space", "地址空间|位址空間|アドレス空間|주소 공간|adressraum|espace d'adressage"),
    (
        "exhausted",
        "已用完|用完了|用完|用尽|耗尽|使い切|고갈|ausgeschöpft|aufgebraucht|erschöpft|épuisé"
        "|agotado|исчерпан",
    ),
    (
        "not enough",
        "不足|不够|足りません|足りない|부족|nicht genug|nicht genügend|reicht nicht|ne suffit pas",
    ),
    ("is full", "已满|满了|已滿|가득|ist voll|voll|plein|lleno"),
    (
        "too large",
        "太大|过大|過大|大きすぎ|너무 크|너무 큼|zu groß|zu gross|trop grand|demasiado grande",
    ),
    ("too small", "太小|过小|過小|小さすぎ|너무 작|zu klein|trop petit|demasiado pequeñ"),
    ("exceeds", "超过|超出|超過|超え|초과|überschreitet|übersteigt|dépasse|supera|превышает"),
    ("limit", "上限|限制|제한|obergrenze|grenze|limite|límite"),
    ("buffer", "缓冲区|缓存区|緩衝區|バッファ|버퍼|puffer|tampon|búfer"),
    (
        "not aligned",
        "未对齐|没有对齐|没对齐|不对齐|整列していません|정렬되지 않|nicht ausgerichtet",
    ),
    ("aligned", "对齐|對齊|정렬|ausgerichtet|ausrichtung"),
    ("freed too early", "提前释放|过早释放|早すぎる解放|zu früh freigegeben"),
    ("freed", "释放|釋放|解放|해제|freigegeben|libéré|liberad"),
    ("leak", "泄漏|泄露|洩漏|リーク|누수|speicherleck|fuite"),
    ("map", "映射|マップ|매핑|abgebildet|einblenden"),
    ("weights", "权重|重み|가중치|gewichte"),
    ("context", "上下文|コンテキスト|컨텍스트|kontext"),
    ("model", "模型|モデル|모델|modell"),
    ("graph", "计算图|グラフ|그래프"),
    ("operator", "算子|演算子|オペレータ|연산자"),
    ("load", "加载|載入|読み込み|ロード|로드|laden|cargar"),
    ("init", "初始化|初期化|초기화|initialisierung"),
    ("execute", "执行|推理|実行|推論|실행|추론|inferenz|ausführung"),
    ("library", "动态库|库文件|ライブラリ|라이브러리|bibliothek|bibliothèque|biblioteca"),
    ("device", "设备|裝置|デバイス|장치|gerät"),
    ("driver", "驱动|驅動|ドライバ|드라이버|treiber|pilote|controlador"),
    ("session", "会话|會話|セッション|세션|sitzungen|sitzung"),
    ("process", "进程|プロセス|프로세스|prozess|proceso|processus"),
    ("version", "版本|バージョン|버전|versión"),
    ("signature", "签名|簽名|署名|서명|signatur|firma digital"),
    ("waiting for", "等待|待機|대기|beim warten auf|warten auf"),
    ("response", "响应|響應|応答|응답|antwort"),
    ("size", "大小|尺寸|サイズ|크기|größe|taille|tamaño"),
    ("input", "输入|入力|입력|eingabe"),
    ("output", "输出|出力|출력|ausgabe"),
    ("needs", "需要|必要|필요|verlangt|benötigt|braucht|nécessite|necesita"),
    ("only", "只有|仅有|しかない|nur noch|seulement|solamente"),
    ("expected", "期望|预期|期待値|예상|erwartet|attendu|esperado"),
    ("got", "实际|實際|実際|실제|tatsächlich"),
    ("wrong", "不对|不正确|間違って|正しくない|不正な|잘못된|falsch|incorrecto"),
    ("killed", "被杀|杀死|杀掉|被系统杀|강제 종료|beendet vom system|abgeschossen"),
    ("in use", "占用|使用中|사용 중|belegt|occupé|ocupado"),
    ("no more", "keine weiteren|keine weitere"),
    ("twice", "重复|两次|二重|중복|zweimal|doppelt"),
    ("hangs", "卡住|卡死|固まる|멈춤|hängt|bloqué"),
    (
        "no errors",
        "没有错误|无错误|エラーなし|오류 없|keine fehler|ohne fehler|sans erreur|sin errores",
    ),
    ("no leak", "无泄漏|无泄露|没有泄漏|リークなし|누수 없|kein speicherleck|keine lecks"),
    ("no", "没有|无|無|なし|없음|keinen|keine|kein"),
    ("passed", "通过|通過|통과|bestanden"),
    ("success", "成功|성공|erfolgreich|réussi|éxito|успешно"),
    ("done", "完成|完了|완료|abgeschlossen|terminé"),
    ("ok", "正常|問題なし|정상"),
)


@cache
def _english() -> dict[str, str]:
    return {one: meaning for meaning, said in _PHRASES for one in said.split("|")}


@cache
def _phrases(ascii_only: bool) -> re.Pattern[str]:
    order = [*map(re.escape, sorted(_english(), key=lambda one: (-len(one), one)))]
    asked = [one for one in order if one.isascii()] if ascii_only else order
    # Words of letters with spaces between them stand alone; others may touch their neighbours.
    alone = "|".join(one for one in asked if one[0] < "\u0400")
    touching = "".join(f"|{one}" for one in asked if one[0] >= "\u0400")
    return re.compile(rf"(?<![a-zà-ÿ])(?:{alone}){touching}")


def in_english(low: str) -> str:
    """A line in small letters with what is known of other languages in English."""
    english = _english()
    # Blanks on both sides: there are none between words in Chinese.
    said = _phrases(low.isascii()).sub(lambda found: f" {english[found[0]]} ", low)
    return low if said == low else re.sub(" {2,}", " ", said)


def bytes_in_english(low: bytes) -> bytes:
    """The same of bytes, which stay as they are where nothing is to be said otherwise."""
    text = low.decode("utf-8", "replace")
    said = in_english(text)
    return low if said == text else said.encode("utf-8")
