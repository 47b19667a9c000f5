"""A tracker from another package, in a recipe's ``loggers``."""

CODE = '''
class Lines:
    """One line of text a step."""

    def __init__(self, folder, step):
        self.file = (folder / "lines.txt").open("a")

    def write(self, step, values):
        print(step, *sorted(values), file=self.file)

    def close(self):
        self.file.close()
'''


def test_a_tracker_of_another_package_gets_the_numbers_of_a_run(other_package, image_tree, tiny_recipe, tmp_path):
    python = other_package(CODE, "sightline.trackers", "lines", "Lines")
    recipe = [f"data.manifest={image_tree}", *tiny_recipe, 'loggers=["lines"]', "schedule.epochs=1"]
    trained = python("-m", "sightline", "train", "images", *recipe, "--out", tmp_path / "run")
    assert trained.returncode == 0, trained.stderr
    lines = (tmp_path / "run" / "lines.txt").read_text().splitlines()
    assert any("loss" in line for line in lines)
