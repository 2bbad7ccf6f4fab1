"""An equation inside the door, with what is known of where the rows stand in its inputs."""

from collections.abc import Hashable

from dpppl.information_flow.values import Axis, Rows


class Misplaced(Exception):
    """Rows meet. `in_sum`: and do so by being added up."""

    def __init__(self, message: str, in_sum: bool = False):
        super().__init__(message)
        self.in_sum = in_sum


Placed = list[tuple[tuple[Axis, ...], Hashable]]
"""For each output, the rows' axes and their order."""


class Equation:
    """An equation, with shapes and forms at hand."""

    def __init__(self, equation, inputs, forms):
        self.name, self.params = equation.primitive.name, equation.params
        self.inputs, self.forms = inputs, forms
        self.shapes = [tuple(atom.aval.shape) for atom in equation.invars]
        self.new_shapes = [tuple(atom.aval.shape) for atom in equation.outvars]

    @property
    def first(self) -> Rows:
        return next(form for form in self.forms if form is not None)

    def everywhere(self, axes) -> Placed:
        """All outputs have the rows along these axes, in the order of the first input that has any."""
        return Placed([(tuple(sorted(axes)), self.first.which)] * len(self.new_shapes))

    def same_axes(self) -> tuple[Axis, ...]:
        axes = {form.axes for form in self.forms if form is not None}
        if len(axes) > 1:
            raise Misplaced(f"rows along different axes meet in {self.name}")
        return axes.pop()

    def only_first(self, count: int = 1) -> None:
        """Refuse rows in inputs other than the first `count`, such as indices."""
        if any(form is not None for form in self.forms[count:]):
            raise Misplaced(f"a row decides where {self.name} looks")

    def off(self, *dimensions) -> Placed:
        """The rows stay where they are, if none stand along these axes."""
        axes = self.same_axes()
        rank = len(self.shapes[0])
        if {axis.axis for axis in axes} & {dimension % rank for dimension in dimensions}:
            raise Misplaced(f"rows meet in {self.name}")
        return self.everywhere(axes)
