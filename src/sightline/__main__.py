"""``python -m sightline`` is the console command."""

from sightline.cli.main import run

if __name__ == "__main__":
    run()
