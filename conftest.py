"""What tests/ and contracts/ share: both are run on machines that others use too."""

from __future__ import annotations

try:
    from hypothesis import settings
except ImportError:  # the contract suite does without
    pass
else:
    # How long an example takes says nothing there. What is to be tried oftener says so beside the property.
    settings.register_profile("project", deadline=None, max_examples=50)
    # Of ci/mutants: the same examples each time, and few, for each change runs them again.
    settings.register_profile("mutants", deadline=None, max_examples=20, derandomize=True)
    settings.load_profile("project")
