//! libeyrie-fi.so, the libfabric provider in every rank.
