# SPDX-License-Identifier: Apache-2.0
"""The shells' part of completion, for bash, zsh and fish: who completes is the command itself.

The code is in ``completions`` as shells look for it, a file for each command where they want that:
``python3 -m gotrace.cli.shells`` in a clone writes these files, and a test holds them to it. The
protocol is argcomplete's: the command gets the line in the environment, and writes words to file
descriptor 8.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping, Sequence
from pathlib import Path

_HEAD = "# SPDX-License-Identifier: Apache-2.0\n# Written by python3 -m gotrace.cli.shells.\n"

_BASH = """\
_gotrace_complete() {
    local IFS=$'\\013'
    COMPREPLY=($(IFS="$IFS" COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" COMP_TYPE=9 \\
        _ARGCOMPLETE_COMP_WORDBREAKS="$COMP_WORDBREAKS" _ARGCOMPLETE_IFS="$IFS" \\
        _ARGCOMPLETE_SHELL=bash _ARGCOMPLETE_SUPPRESS_SPACE=0 _ARGCOMPLETE=1 \\
        "$1" 8>&1 9>&2 >/dev/null 2>&1)) || COMPREPLY=()
}
complete -o nospace -o default -o bashdefault -F _gotrace_complete @COMMAND@
"""

#: The completed word is as bash would have it, escaped; zsh inserts it as it is.
_ZSH = """\
#compdef @COMMANDS@
@HEAD@
_gotrace() {
    local IFS=$'\\013' line="${(j: :)words[1,CURRENT]}"
    local -a found
    found=($(IFS="$IFS" COMP_LINE="$line" COMP_POINT="${#line}" COMP_TYPE=9 \\
        _ARGCOMPLETE_COMP_WORDBREAKS= _ARGCOMPLETE_IFS="$IFS" _ARGCOMPLETE_SHELL=bash \\
        _ARGCOMPLETE_SUPPRESS_SPACE=1 _ARGCOMPLETE=1 \\
        "${words[1]}" 8>&1 9>&2 >/dev/null 2>&1)) || return 1
    compadd -U -Q -S '' -- "${found[@]}"
}

_gotrace "$@"
"""

_FISH = """\
function __fish_@COMMAND@_complete
    set -lx _ARGCOMPLETE 1
    set -lx _ARGCOMPLETE_IFS \\n
    set -lx _ARGCOMPLETE_COMP_WORDBREAKS ''
    set -lx _ARGCOMPLETE_SUPPRESS_SPACE 1
    set -lx _ARGCOMPLETE_SHELL fish
    set -lx COMP_TYPE 9
    set -lx COMP_LINE (commandline -cp)
    set -lx COMP_POINT (string length -- "$COMP_LINE")
    set -l words (commandline -opc)
    command $words[1] 8>&1 9>&2 >/dev/null 2>&1
end
complete -c @COMMAND@ -f -a '(__fish_@COMMAND@_complete)'
"""


def completion_files(commands: Sequence[str]) -> Mapping[str, str]:
    """Return the files by their paths in ``completions``."""
    zsh = _ZSH.replace("@COMMANDS@", " ".join(commands)).replace("@HEAD@\n", _HEAD)
    files = {"zsh/_gotrace": zsh}
    for command in commands:
        files[f"bash/{command}"] = _HEAD + _BASH.replace("@COMMAND@", command)
        files[f"fish/{command}.fish"] = _HEAD + _FISH.replace("@COMMAND@", command)
    return files


def main() -> None:
    """Write the files of a clone, for the commands that its setup.cfg has."""
    clone = Path(__file__).parents[2]
    setup = configparser.ConfigParser()
    setup.read(clone / "setup.cfg")
    scripts = setup["options.entry_points"]["console_scripts"]
    commands = [line.partition(" = ")[0] for line in scripts.split("\n") if line]
    for name, text in completion_files(commands).items():
        path = clone / "completions" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
