"""Settings of an experiment: read from TOML and checked.

Its tables and keys, the readers and uplink stages that it may name, and the errors for wrong settings.
"""

from sordino.config.experiment import load as load
from sordino.config.experiment import places as places
from sordino.config.experiment import resolved_table as resolved_table
from sordino.config.experiment import validate as validate
from sordino.config.reading import CHOOSERS as CHOOSERS
from sordino.config.reading import build as build
from sordino.config.reading import filled as filled
from sordino.config.reading import parameters as parameters
from sordino.config.settings import Chaos as Chaos
from sordino.config.settings import Data as Data
from sordino.config.settings import Engine as Engine
from sordino.config.settings import EvaluationSettings as EvaluationSettings
from sordino.config.settings import Experiment as Experiment
from sordino.config.settings import Network as Network
from sordino.config.settings import Privacy as Privacy
from sordino.config.settings import Section as Section
from sordino.config.settings import SlowClients as SlowClients
from sordino.config.settings import Table as Table
