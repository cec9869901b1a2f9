"""The command `completion` of a command line: the scripts that make shells complete commands and options."""

import click

_HELP = """\
Print the script that makes a shell complete commands and options.

\b
bash:  {0} completion bash > ~/.local/share/bash-completion/completions/{0}
zsh:   {0} completion zsh > "${{fpath[1]}}/_{0}"
fish:  {0} completion fish > ~/.config/fish/completions/{0}.fish
"""


def completion_command(program: str) -> click.Command:
    """The command `completion` of ``program``, the name under which shells find the command line."""

    @click.command("completion", help=_HELP.format(program), context_settings={"help_option_names": ["-h", "--help"]})
    @click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
    @click.pass_context
    def completion(ctx: click.Context, shell: str) -> None:
        from click.shell_completion import get_completion_class

        kind = get_completion_class(shell)
        assert kind is not None
        click.echo(kind(ctx.find_root().command, {}, program, f"_{program.upper()}_COMPLETE").source())

    return completion
