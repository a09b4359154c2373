//! substitution methods and the search for better ones.
