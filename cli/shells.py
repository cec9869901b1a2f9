"""The command `skylark completion`: scripts that make shells complete commands and options."""

import click


@click.command("completion", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that makes a shell complete commands and options.

    \b
    bash:  skylark completion bash > ~/.local/share/bash-completion/completions/skylark
    zsh:   skylark completion zsh > "${fpath[1]}/_skylark"
    fish:  skylark completion fish > ~/.config/fish/completions/skylark.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "skylark", "_SKYLARK_COMPLETE").source())
