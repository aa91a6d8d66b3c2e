"""``heatsmooth serve``."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from heatsmooth.cli import options as o


def serve(
    *,
    source: o.Source,
    sigma: o.Sigma,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    expose: Annotated[
        bool, typer.Option("--expose", help="Let --host be one that other machines reach: no password, no encryption.")
    ] = False,
    names: Annotated[Path | None, typer.Option("--classes", help="A file with the name of a class a line.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Offer examples from this data (default: the embedded, if trained on them).")
    ] = None,
    n: Annotated[int, typer.Option(help="The most noisy draws an image.")] = 10_000,
    alpha: Annotated[float, typer.Option(help="Probability that a certificate is false.")] = 0.001,
    data_root: o.DataRoot = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the centre crop (default: the network's).")] = None,
    model: o.Model = None,
    mean: o.Mean = None,
    std: o.Std = None,
    device: o.Device = None,
) -> None:
    """Open a web page where one drops an image and watches its certified radius grow; Ctrl-C ends it.

    Example: heatsmooth serve --from runs/smoothed --sigma 0.25
    """
    from heatsmooth.progress import bar
    from heatsmooth.workflows.inputs import Images
    from heatsmooth.workflows.serve import open_server

    with bar() as progress:
        server = open_server(
            network=o.network(source, model, None, mean, std, image_size),
            images=Images(data, data_root) if data else None,
            sigma=sigma,
            host=host,
            port=port,
            exposed=expose,
            names=names,
            n=n,
            alpha=alpha,
            device=device,
            progress=progress,
        )
    if server.exposed:
        typer.echo(f"heatsmooth: warning: whoever reaches {server.url} can use this network; no password", err=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        typer.echo(f"{server.url} (Ctrl-C ends it)")
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("heatsmooth: stopped", err=True)
    finally:
        server.close()
