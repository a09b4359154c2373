! Heat in a plate whose rows are divided among the ranks: in Fortran rows are strided, so halos are
! derived types, and the result is written through MPI-IO by a view of the rank's own rows. It must
! not read a clock: its results depend on its options alone.
! Usage: rows [STEPS [FILE]] (default 3000); writes "rows.out". With FILE it goes on after half of
! the steps when there is such a file.
program rows
  implicit none
  include 'mpif.h'
  integer, parameter :: columns = 256, mine = 64
  double precision :: now(0:mine + 1, columns), next(0:mine + 1, columns)
  double precision :: here, all
  integer :: rank, ranks, up, down, row, block, view, file, error, i, j, step, steps
  integer :: whole(2), part(2), start(2)
  character(len=16) :: word
  character(len=4096) :: name
  logical :: goes

  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  steps = 3000
  if (command_argument_count() > 0) then
    call get_command_argument(1, word)
    read (word, *) steps
  end if
  goes = command_argument_count() < 2
  if (.not. goes) call get_command_argument(2, name)
  up = rank - 1
  if (rank == 0) up = MPI_PROC_NULL
  down = rank + 1
  if (rank == ranks - 1) down = MPI_PROC_NULL

  call MPI_Type_vector(columns, 1, mine + 2, MPI_DOUBLE_PRECISION, row, error)
  call MPI_Type_commit(row, error)
  do j = 1, columns
    do i = 0, mine + 1
      now(i, j) = mod((rank * mine + i) * 7 + j * 13, 101)
    end do
  end do
  next = now

  do step = 1, steps
    call MPI_Sendrecv(now(1, 1), 1, row, up, 1, now(mine + 1, 1), 1, row, down, 1, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
    call MPI_Sendrecv(now(mine, 1), 1, row, down, 2, now(0, 1), 1, row, up, 2, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
    do j = 2, columns - 1
      do i = 1, mine
        next(i, j) = 0.25d0 * (now(i - 1, j) + now(i + 1, j) + now(i, j - 1) + now(i, j + 1))
      end do
    end do
    now(1:mine, :) = next(1:mine, :)
    do while (step >= steps / 2 .and. .not. goes)
      if (rank == 0) inquire (file=trim(name), exist=goes)
      call MPI_Bcast(goes, 1, MPI_LOGICAL, 0, MPI_COMM_WORLD, error)
    end do
    if (mod(step, 100) == 0) then
      here = maxval(now(1:mine, :))
      call MPI_Allreduce(here, all, 1, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD, error)
      if (rank == 0) then
        print '(a, i7, a, es24.16)', 'step ', step, ' highest ', all
        flush (6)
      end if
    end if
  end do

  ! The rank's rows of the whole plate, and the same without their halos in memory.
  whole = [mine * ranks, columns]
  part = [mine, columns]
  start = [mine * rank, 0]
  call MPI_Type_create_subarray(2, whole, part, start, MPI_ORDER_FORTRAN, MPI_DOUBLE_PRECISION, &
                                view, error)
  call MPI_Type_commit(view, error)
  whole = [mine + 2, columns]
  start = [1, 0]
  call MPI_Type_create_subarray(2, whole, part, start, MPI_ORDER_FORTRAN, MPI_DOUBLE_PRECISION, &
                                block, error)
  call MPI_Type_commit(block, error)
  call write_plate()
  call MPI_Finalize(error)

contains

  subroutine write_plate()
    integer(kind=MPI_OFFSET_KIND) :: beginning
    beginning = 0
    call MPI_File_open(MPI_COMM_WORLD, 'rows.out', MPI_MODE_CREATE + MPI_MODE_WRONLY, &
                       MPI_INFO_NULL, file, error)
    call MPI_File_set_view(file, beginning, MPI_DOUBLE_PRECISION, view, 'native', &
                           MPI_INFO_NULL, error)
    call MPI_File_write_all(file, now, 1, block, MPI_STATUS_IGNORE, error)
    call MPI_File_close(file, error)
  end subroutine
end program
