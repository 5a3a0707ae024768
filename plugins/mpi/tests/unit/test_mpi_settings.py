"""Any values of an MPI job's variables are accepted, or a ConfigurationError describes the problem."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain_mpi.settings import MpiAgentSettings, MpiSettings

NAMES = sorted(value for name, value in vars(contract).items() if name.startswith("ENV_MPI_"))
VALUES = st.sampled_from(["0", "1", "MPICH", "'", "/", ""]) | st.text(
    st.characters(exclude_characters="\0"), max_size=40
)


@pytest.mark.parametrize("settings", [MpiSettings, MpiAgentSettings])
@given(variables=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
@example(variables={contract.ENV_MPI_OPTIONS: "'"})
def test_any_variables(settings: type[MpiSettings | MpiAgentSettings], variables: dict[str, str]) -> None:
    """Each error names its variable."""
    try:
        settings.from_env(variables)
        said = ""
    except ConfigurationError as error:
        said = str(error)
    assert said == "" or said.startswith("RINGTRAIN_MPI_")
