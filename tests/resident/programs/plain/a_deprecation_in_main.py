import warnings

warnings.warn("old", DeprecationWarning)
