# SPDX-License-Identifier: Apache-2.0
# Written by python3 -m gotrace.cli.shells.
function __fish_goalloc_complete
    set -lx _ARGCOMPLETE 1
    set -lx _ARGCOMPLETE_IFS \n
    set -lx _ARGCOMPLETE_COMP_WORDBREAKS ''
    set -lx _ARGCOMPLETE_SUPPRESS_SPACE 1
    set -lx _ARGCOMPLETE_SHELL fish
    set -lx COMP_TYPE 9
    set -lx COMP_LINE (commandline -cp)
    set -lx COMP_POINT (string length -- "$COMP_LINE")
    set -l words (commandline -opc)
    command $words[1] 8>&1 9>&2 >/dev/null 2>&1
end
complete -c goalloc -f -a '(__fish_goalloc_complete)'
