! Adds the numbers from 1 to 100. Goes on where an earlier attempt has saved its state.
!
! gfortran -o sum sum.f90 -ltcsiof
program sum
    implicit none
    integer, external :: tcs_init, tcs_jobrestarted, tcs_open_read, tcs_open_write
    integer, external :: tcs_read8, tcs_write8, tcs_close, tcs_finalize, pmc_checkpoint_due
    integer(8) :: state(2) = 0
    integer :: lun, failed

    if (tcs_init(0) /= 0) stop 1
    if (tcs_jobrestarted() /= 0) then
        lun = tcs_open_read('state')
        if (lun < 0) stop 1
        if (tcs_read8(lun, state, 2_8) /= 0) stop 1
        if (tcs_close(lun, 0) /= 0) stop 1
    end if
    do while (state(1) < 100)
        state(1) = state(1) + 1
        state(2) = state(2) + state(1)
        call execute_command_line('sleep 0.02') ! for the work of a step
        if (mod(state(1), 10_8) == 0 .or. pmc_checkpoint_due() > 0) then
            lun = tcs_open_write('state')
            ! If it fails, the last one is still there.
            if (tcs_write8(lun, state, 2_8) == 0) failed = tcs_close(lun, 0)
        end if
    end do
    print '(a, i0)', 'The sum is ', state(2)
    if (tcs_finalize() /= 0) stop 1
end program
