"""How the lines of programs look that have nothing to do with QNN, in small letters.

Tools that build and install, version control, tests, servers, drivers of other hardware, other
ways to run networks. The names and shapes are those of whole programs, not of single messages.
"""

from __future__ import annotations

_BUILDS = (
    rb"make|gmake|mingw32-make|ninja|cmake|ctest|meson|bazel|scons|autoconf|automake|libtool|gcc"
    rb"|g\+\+|cc1|cc1plus|clang|clang\+\+|collect2|ld|ld\.\w+|lld|nvcc|rustc|cargo|javac|kotlinc|tsc"
    rb"|swiftc|webpack|vite|eslint|gradlew?|mvn|cabal|fetch-pack|index-pack|git|hg|svn|pkg-config"
    rb"|msbuild|nuget|bitbake"
)
_PACKAGES = (
    rb"apt|apt-get|apt-key|aptitude|dpkg|dpkg-\w+|debconf|update-[\w.-]+|invoke-rc\.d"
    rb"|deb-systemd-\w+|start-stop-daemon|(?:add|del)(?:user|group)|user(?:add|mod|del)"
    rb"|group(?:add|mod)|chfn|chsh|passwd|sudo|npm|npx|yarn|pnpm|corepack|pip3?|pipx|poetry|conda"
    rb"|mamba|brew|pacman|makepkg|dnf|yum|rpm|zypper|flatpak|bundler?|composer|ldconfig|locale-gen"
    rb"|perl|dracut|mkinitramfs|depmod|grub-\w+|curl|wget|gpg|dirmngr"
)
_SERVICES = (
    rb"systemd(?:-\w+)*|systemctl|journalctl|cron|anacron|dbus(?:-\w+)*|udevadm|kernel|dhcpcd"
    rb"|wpa_supplicant|networkmanager|dhclient|modemmanager|avahi-\w+|ssh|scp|rsync|sendmail"
    rb"|postfix\S*|dovecot|nginx|apache2|php\S*|mysqld?\S*|mariadb|postgres\w*|docker(?:-\w+)?"
    rb"|containerd\S*|kubelet|kubectl|minikube|nova-\w+|haproxy|gdm\S*|gnome-\S+|gsd-\S+|kwin\S*"
    rb"|plasmashell|xorg|xwayland|pulseaudio|pipewire\S*|gtk-\S+|glib-\S+|mutter|lightdm"
    rb"|com\.apple\.\S+"
)
# Before a name: when and where, the step and the second of a build of an image, the folder.
_BEFORE = (
    rb"(?:\w{3,5}\.? +[0-9]{1,2} [0-9:]{8} \S+ )?(?:#[0-9]+ )?(?:[0-9]{1,5}\.[0-9]{1,3} )?"
    rb"(?:\| )?\s*(?:/usr/(?:s?bin|libexec)/)?"
)
_MODULE = rb"(?:\([\w:-]{1,24}\))?"
_DAEMON = rb"[a-z][a-z-]{2,14}d" + _MODULE + rb"\[[0-9]{1,7}\]"
NAMED = (
    _BEFORE
    + rb"(?:(?:"
    + rb"|".join((_BUILDS, _PACKAGES, _SERVICES))
    + rb")"
    + _MODULE
    + rb"(?:\[[0-9]{1,7}\])?|"
    + _DAEMON
    + rb"): "
)

_COMPILERS = (
    rb"^\S{0,200}\.(?:c|cc|cpp|cxx|h|hpp|hh|m|mm|rs|go|swift|kt|java|f90|s|ts|tsx|js|cs|vue):[0-9]+"
    rb"(?::[0-9]+)?: (?:(?:fatal )?error|warning|note|remark):",
    rb"\(\.text[\w.]*\+0x[0-9a-f]+\):|undefined reference to [`']|\[-w[a-z][\w=+-]+\]",
    rb": in function [`'\xe2]|^in file included from|: error (?:c|lnk|msb|cs|ts)[0-9]{4}: ",
    rb"^(?:error|warning)(?:\[e[0-9]{4}\]: |: (?:unused|could not compile|aborting due))",
    rb"^\s*--> \S+:[0-9]+:[0-9]+|^\s*= (?:note|help): ",
)
_BUILD_TOOLS = (
    rb"\bmakefile:[0-9]+: |\bmake(?:\[[0-9]+\])?: \*\*\*|^configure: (?:error|warning): ",
    rb"^cmake (?:error|warning)|^\s*could not find \w+ \(missing:|^\[[0-9]+/[0-9]+\] building ",
    rb"^\s*-- (?:looking for|could not find|performing test|configuring|generating|detecting)",
    rb"^> task :|org\.gradle\.|\bexecution failed for task '|\bgradle (?:sync|build|daemon)\b",
    rb"^build (?:failed|successful) in|\bdo_(?:compile|fetch|install|package|configure|rootfs)\b",
    rb"^(?:note|summary): (?:recipe|tasks|there (?:was|were)|[0-9]+ task|executing tasks)\b",
)
_PACKAGE_TOOLS = (
    rb"^(?:get|hit|ign|err):[0-9]+ \w+://|^reading (?:package lists|state information)",
    rb"^(?:setting up|unpacking|removing|purging)\b.{1,120}\(\S+\) (?:over \(\S+\) )?\.\.\.$",
    rb"^preparing to unpack |^selecting previously |^processing triggers for |^\[notice\] ",
    rb"^[ew]: (?:unable to (?:locate package|fetch|lock|acquire)|some index|failed to fetch"
    rb"|package '|could not get lock|sub-process|the repository|gpg error)",
    rb"^adding (?:\w+ )?(?:user|group) [`']|satisf(?:y|ies) the requirement",
    rb"^(?:error: )?no (?:matching )?distributions?\b|^requirement already satisfied",
    rb"^collecting (?:package metadata|[\w.-]+(?:[=<>~!\[]|$| \())|^solving environment",
    rb"^(?:conda\.\S+|unsatisfiable|packagesnotfound)\w*error:|^yarn (?:install|run) v",
    rb"^npm (?:err!|warn|error|notice)|^\s*(?:warn|err!?)\s+deprecated",
)
_VERSION_CONTROL = (
    rb"^cloning into '|^remote: (?:enumerating|counting|compressing|total|resolving|repository)",
    rb"^fatal: (?:not a git|unable to access '\w+://|the remote end|early eof|index-pack"
    rb"|could not read|repository)|\bgit-upload-pack\b",
    rb"^error: (?:rpc failed|pathspec|failed to push|src refspec|your local changes)",
)
_TESTS = (
    rb"^(?:pass|fail|xfail|kfail|unsupported|untested): \S+\.exp: |^(?:failed|passed): \S+\.java$",
    rb"^(?:failed|error|passed) \S+\.py::|^=+ (?:short test summary|failures|errors) |\bjtreg\b",
    rb"^=* ?[0-9]+ (?:failed|passed)\b.{0,60}\bin [0-9.]+ ?s|^test \S+ \.\.\. (?:ok|failed)$",
)
_SERVERS = (
    rb"\b[0-9]+#[0-9]+: |^\[\w{3} \w{3} [0-9 ]{2} [0-9:.]{8,15} [0-9]{4}\] \[\w+\]|\bpam_unix\b",
    rb"\borg\.(?:apache|springframework|eclipse|jboss|hibernate|elasticsearch|jenkins"
    rb"|freedesktop)\.|\bdfs\.\w+|\bspark\.\w+|\bquorumcnx",
    rb"(?:^|\s)[\w@-]+\.(?:service|socket|mount|timer): |\bsystemctl status\b",
    rb"^\s*(?:normal|warning)\s+\w+\s+.{1,40}\bkubelet\b|, (?:info|error|warning) +(?:cbs|csi) ",
    rb"\bhttp/[12](?:\.[01])?\" (?:status: )?[1-5][0-9]{2}\b|\bsystem(?:\"|_bus)|/run/dbus/",
    rb"\b(?:udev|initramfs|apparmor|runlevel)\b",
)
_DRIVERS = (
    rb"\bacpi(?: bios)? (?:error|warning|exception)|^usb [0-9]+-[0-9]|^(?:usb|xhc)[a-z]+: ",
    rb"^\w[\w-]* [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]: |^ata[0-9]+[.:]",
    rb"^(?:ext4-fs|xfs|btrfs|floppy[0-9]) ?\S*: ",
)
_APPLICATIONS = (
    rb"\[\w[\w,#:/]* @ (?:0x)?[0-9a-f]{6,16}\]|\bdecoding stream #|\bffmpeg\b|\bmoov atom\b",
    rb"^(?:task|play|handler) \[.{1,80}\] \*+|\b(?:unreachable|failed)! => \{|/\.ansible/",
    rb"\broslaunch\b|/\.ros/log\b|\brosmaster\b|\brclcpp\b|\[rcl\]|\bhomeassistant\.|\besphome\b",
    rb"\bguru meditation\b|^rst:0x[0-9a-f]+ \(|\bcocoapods\b",
    rb"\bxcode\b|\bflutter\b|\*\* build failed \*\*",
    rb"\bthe database system\b|\b(?:relation|role|column|database) \"[^\"]{1,60}\" does not exist",
    rb"\[innodb\]|\bpsql: |\bmongod\b|\bredis(?:-server)?\b|\bunityengine\b|\[server thread/",
    rb":error:\w+\.cc\([0-9]+\)\]|\bfinished: failure$|^##\[(?:error|warning)\]",
    rb"^php (?:fatal|parse|warning|notice)|\.rb:[0-9]+:in |\bbundler::| at \S+\.p[lm] line [0-9]+",
    rb"^goroutine [0-9]+ \[|\bnode:internal/|/node_modules/|^! (?:latex|package) ",
    rb"\bg[td]k-(?:warning|critical)|\blibgl error|\bmesa\b|^(?:[0-9a-f]{4}:)?(?:fixme|err):\w+:",
    rb"\berror (?:response from daemon|during connect|from server)\b|\bterraform\b",
)
SHAPES = rb"|".join(
    (
        *(*_COMPILERS, *_BUILD_TOOLS, *_PACKAGE_TOOLS, *_VERSION_CONTROL),
        *(*_TESTS, *_SERVERS, *_DRIVERS, *_APPLICATIONS),
    )
)
# Other ways to run networks, and warnings of Python: the words are ours, the matter is not.
OTHER_WAYS = (
    rb"lib(?:cuda|cudart|cudnn|cublas|cufft|curand|cusolver|cusparse|nvinfer|nvrtc)\w*\.so"
    rb"|\bcudnn\b|tensorflow/(?:stream_executor|core|compiler|python)/|xla/stream_executor"
    rb"|\btrtexec\b|\bcoremltools\b|\bmlpackage\b|\bopenvino\b|scikit-learn"
    rb"|\.py:[0-9]+: \w*warning: |^\s*running benchmark for at least"
)
ANY_TOOL = SHAPES + b"|" + OTHER_WAYS
