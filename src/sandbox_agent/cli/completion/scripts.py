"""The scripts that shells run when you press the tab key. They ask the program, and know no command themselves.

The program that is asked is the one that was typed, whatever else is on the path; for an alias it is sandbox-agent.
"""

_BASH = r"""# Completion of sandbox-agent for bash; written by: sandbox-agent completion bash
_sandbox_agent() {
    local program word kind=
    program=$(type -P -- "${COMP_WORDS[0]/#\~\//$HOME/}") || program=sandbox-agent
    COMPREPLY=()
    while IFS= read -r word; do
        if [[ -z $kind ]]; then
            kind=$word
        else
            COMPREPLY+=("$word")
        fi
    done < <("$program" __complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
    case $kind in
        files) compopt -o default 2>/dev/null ;;
        directories) compopt -o dirnames 2>/dev/null ;;
        remote)
            compopt -o filenames 2>/dev/null
            [[ ${COMPREPLY[0]} == */ ]] && compopt -o nospace 2>/dev/null
            ;;
    esac
}
complete -F _sandbox_agent sandbox-agent
"""

_ZSH = r"""#compdef sandbox-agent
# Completion of sandbox-agent for zsh; written by: sandbox-agent completion zsh
_sandbox-agent() {
    local program=${(Q)words[1]}
    local -a answer
    program=${program/#\~\//$HOME/}
    (( $+commands[$program] )) || [[ -x $program ]] || program=sandbox-agent
    answer=("${(@f)$(command "$program" __complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    case $answer[1] in
        files|directories)
            [[ $PREFIX == --*=* ]] && compset -P '*='
            if [[ $answer[1] == files ]]; then _files; else _files -/; fi
            ;;
        words)
            shift answer
            (( $#answer )) && _describe sandbox-agent answer
            ;;
        remote)
            shift answer
            local -a folders=(${(M)answer:#*/}) files=(${answer:#*/})
            (( $#folders )) && compadd -S '' -a folders
            (( $#files )) && compadd -a files
            ;;
    esac
}
if [[ $funcstack[1] == _sandbox-agent ]]; then
    _sandbox-agent "$@"
else
    compdef _sandbox-agent sandbox-agent
fi
"""

_FISH = r"""# Completion of sandbox-agent for fish; written by: sandbox-agent completion fish
function __sandbox_agent_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~/' "$HOME/" -- $words[1])
    command -q $program; or set program sandbox-agent
    set -l answer (command $program __complete fish $words[2..-1] "$current" 2>/dev/null)
    switch "$answer[1]"
        case files directories
            set -l flag (string match -r '^--[^=]*=' -- $current)
            set -l path (string replace -r '^--[^=]*=' '' -- $current)
            if test $answer[1] = files
                printf '%s\n' "$flag"(__fish_complete_path "$path")
            else
                printf '%s\n' "$flag"(__fish_complete_directories "$path" '')
            end
        case words remote
            test (count $answer) -gt 1; and printf '%s\n' $answer[2..-1]
    end
end
complete -c sandbox-agent -e
complete -c sandbox-agent -f -a '(__sandbox_agent_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""By the shell's name."""
