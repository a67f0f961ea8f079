// Command libhocket is the shared library by which other languages use hocket: a C interface to package capi,
// declared in hocket.h. It is the only place that needs a C compiler:
//
//	go build -buildmode=c-shared -o libhocket.so ./libhocket
package main

/*
#include <pthread.h>
#include <stdlib.h>
#include "hocket.h"

static uintptr_t own_thread(void) { return (uintptr_t)pthread_self(); }
*/
import "C"

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"hocket.example/hocket"
	_ "hocket.example/hocket/cuda"
	"hocket.example/hocket/internal/capi"
	"hocket.example/hocket/internal/device/cuda/process"
)

var library = capi.New()

// program is what main runs where libhocket is not a shared library: see python.go.
var program = func() {}

func main() { program() }

// fail hands an error to the caller.
func fail(err error, to **C.char) {
	if err != nil && to != nil {
		*to = C.CString(capi.Describe(err))
	}
}

// guarded turns a panic into an error: none may leave the library. The thread keeps the CUDA context that its caller
// has made current.
func guarded(to **C.char, do func() error) (ok bool) {
	defer process.Keep()()
	err := caught(do)
	fail(err, to)
	return err == nil
}

func caught(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a fault of hocket: %v", p)
		}
	}()
	return do()
}

// aside runs what makes the first CUDA calls, before there is a driver that knows the caller's context, on a thread
// of Go's.
func aside(do func() error) error {
	done := make(chan error)
	go func() { done <- caught(do) }()
	return <-done
}

func text(s *C.char) string {
	if s == nil {
		return ""
	}
	return C.GoString(s)
}

// hocket_version returns the version of this interface.
//
//export hocket_version
func hocket_version() C.int { return capi.Version }

// hocket_free gives back text that the library returned.
//
//export hocket_free
func hocket_free(s *C.char) { C.free(unsafe.Pointer(s)) }

// hocket_open opens a machine, and joins the other processes that a launcher started; 0 where it fails. *who
// becomes {"rank": …, "size": …}.
//
//export hocket_open
func hocket_open(options *C.char, who, e **C.char) (handle C.int64_t) {
	guarded(e, func() error {
		var h int64
		var joined capi.Joined
		given := text(options)
		err := aside(func() (err error) {
			h, joined, err = library.Open(context.Background(), given)
			return err
		})
		if err != nil {
			return err
		}
		handle = C.int64_t(h)
		return joinedAs(joined, who)
	})
	return handle
}

func joinedAs(joined capi.Joined, who **C.char) error {
	if who == nil {
		return nil
	}
	out, err := json.Marshal(joined)
	if err == nil {
		*who = C.CString(string(out))
	}
	return err
}

// hocket_group opens a machine for some of the processes of another, {"name": …, "ranks": […], "alike": …}; 0 where it
// fails, and in processes that are not of the group, whose rank is -1. With alike all processes of the machine call it,
// also these. *who is as for hocket_open.
//
//export hocket_group
func hocket_group(machine C.int64_t, options *C.char, who, e **C.char) (handle C.int64_t) {
	guarded(e, func() error {
		h, joined, err := library.Group(context.Background(), int64(machine), text(options))
		if err != nil {
			return err
		}
		handle = C.int64_t(h)
		return joinedAs(joined, who)
	})
	return handle
}

// hocket_load loads the text of a program on a machine, or an archive of torch.export that the option export names; 0
// where it fails.
//
//export hocket_load
func hocket_load(machine C.int64_t, program, options *C.char, e **C.char) (handle C.int64_t) {
	guarded(e, func() error {
		h, err := library.Load(int64(machine), text(program), text(options))
		handle = C.int64_t(h)
		return err
	})
	return handle
}

// hocket_layouts returns, as JSON, how parameters and results of a model lie on the ranks, for
// {"dims": {NAME: N}, "shapes": {PARAMETER: [N, …]}}; NULL where it fails.
//
//export hocket_layouts
func hocket_layouts(model C.int64_t, of *C.char, e **C.char) (layouts *C.char) {
	guarded(e, func() error {
		out, err := library.Layouts(context.Background(), int64(model), text(of))
		if err == nil {
			layouts = C.CString(out)
		}
		return err
	})
	return layouts
}

// hocket_parameters returns the names of a model's parameters, a JSON list; NULL where it fails.
//
//export hocket_parameters
func hocket_parameters(model C.int64_t, e **C.char) (names *C.char) {
	guarded(e, func() error {
		out, err := library.Parameters(int64(model))
		if err == nil {
			names = C.CString(out)
		}
		return err
	})
	return names
}

// hocket_description returns, as JSON, a model's program ("text"), its inout parameters ("states") and, if prove is
// not 0, the verdict on its plan ("proof": "proved" or "unknown"). Of a model that hocket_load loaded with the option
// export it also has the parameters that calls give ("inputs"), the names of the weights that each other one is made of
// ("weights"), and which tensors of the option weights are not the model's ("unused").
// NULL where it fails.
//
//export hocket_description
func hocket_description(model C.int64_t, prove C.int, e **C.char) (description *C.char) {
	guarded(e, func() error {
		out, err := library.Description(context.Background(), int64(model), prove != 0)
		if err == nil {
			description = C.CString(out)
		}
		return err
	})
	return description
}

// hocket_gradient returns, as JSON, the gradient of a model's function with respect to parameters as two programs, for
// {"wrt": [PARAMETER, …], "keep": "all", "auto" or "inputs"}. "forward" has the parameters of the function, and returns
// its results, as many as "results" says, and then values that "backward" takes. "backward" returns the gradients of
// parameters, in their order. "takes" says what the parameters of "backward" are, in their order: {"of": "input",
// "output" or "gradient", "index": N}, the last two being results of "forward" and their gradients. NULL where it fails.
//
//export hocket_gradient
func hocket_gradient(model C.int64_t, options *C.char, e **C.char) (programs *C.char) {
	guarded(e, func() error {
		out, err := library.Gradient(int64(model), text(options))
		if err == nil {
			programs = C.CString(out)
		}
		return err
	})
	return programs
}

// hocket_reset gives the states of a model that hocket_load loaded with the option export the archive's values. It
// waits for runs under way. 0 where it fails.
//
//export hocket_reset
func hocket_reset(model C.int64_t, e **C.char) C.int {
	return truth(guarded(e, func() error { return library.Reset(context.Background(), int64(model)) }))
}

// hocket_compare begins to compare a model with its reference on in and what is bound, and returns a number to wait for
// as a run's; 0 where it fails. States stay as they are.
//
//export hocket_compare
func hocket_compare(model C.int64_t, owner unsafe.Pointer, in *C.hocket_tensor, ins C.int64_t, dims *C.char,
	e **C.char) (run C.int64_t) {
	guarded(e, func() error {
		lent := lend(owner)
		defer lent.End()
		ts, err := tensors(in, ins)
		if err != nil {
			return err
		}
		h, err := library.Compare(int64(model), lent, ts, text(dims))
		run = C.int64_t(h)
		return err
	})
	return run
}

// hocket_comparison returns the comparison of a model that ended last, as JSON; NULL where it fails.
//
//export hocket_comparison
func hocket_comparison(model C.int64_t, e **C.char) (comparison *C.char) {
	guarded(e, func() error {
		out, err := library.Comparison(int64(model))
		if err == nil {
			comparison = C.CString(out)
		}
		return err
	})
	return comparison
}

// lend returns the loan of a call. The call ends it, and what it starts may use the memory longer.
func lend(owner unsafe.Pointer) *capi.Loan { return library.Lend(uintptr(owner)) }

// hocket_ended returns an owner whose memory the library no longer uses, once for each call that it was passed to; NULL
// if there is none.
//
//export hocket_ended
func hocket_ended() unsafe.Pointer {
	owner := library.Ended()
	return *(*unsafe.Pointer)(unsafe.Pointer(&owner))
}

// hocket_bind sets a parameter for all runs to come; without data it takes that back. 0 where it fails.
//
//export hocket_bind
func hocket_bind(model C.int64_t, owner unsafe.Pointer, t *C.hocket_tensor, e **C.char) C.int {
	return truth(guarded(e, func() error {
		lent := lend(owner)
		defer lent.End()
		all, err := tensors(t, 1)
		if err != nil {
			return err
		}
		return library.Bind(int64(model), lent, all[0])
	}))
}

// hocket_run begins a run and returns its number, which hocket_wait is to be called with; 0 where it fails.
// dims is a JSON object of those that neither the model nor shapes fix. An inout parameter that in and out both have is
// updated there once the run has ended well.
//
//export hocket_run
func hocket_run(model C.int64_t, owner unsafe.Pointer, in *C.hocket_tensor, ins C.int64_t, out *C.hocket_tensor,
	outs C.int64_t, dims *C.char, e **C.char) (run C.int64_t) {
	guarded(e, func() error {
		lent := lend(owner)
		defer lent.End()
		ts, err := tensors(in, ins)
		results, oerr := tensors(out, outs)
		if err = errors.Join(err, oerr); err != nil {
			return err
		}
		h, err := library.Run(int64(model), lent, ts, results, text(dims))
		run = C.int64_t(h)
		return err
	})
	return run
}

// hocket_wait waits for a run for so many milliseconds at most. It returns 0 while the run goes on, 1 when it
// has ended well, and -1 when it has failed.
//
//export hocket_wait
func hocket_wait(run C.int64_t, milliseconds C.int64_t, e **C.char) (state C.int) {
	if !guarded(e, func() error {
		over, err := library.Wait(int64(run), time.Duration(milliseconds)*time.Millisecond)
		state = truth(over)
		return err
	}) {
		return -1
	}
	return state
}

// hocket_cancel has a run end soon; it is still to be waited for.
//
//export hocket_cancel
func hocket_cancel(run C.int64_t, e **C.char) C.int {
	return truth(guarded(e, func() error { return library.Cancel(int64(run)) }))
}

// hocket_abandon cancels a run without waiting for it. Its number becomes invalid. 0 where it fails.
//
//export hocket_abandon
func hocket_abandon(run C.int64_t, e **C.char) C.int {
	return truth(guarded(e, func() error { return library.Abandon(int64(run)) }))
}

// hocket_collectives opens a machine's ranks, one a process, for collectives on memory and streams of the caller's; 0
// where it fails.
//
//export hocket_collectives
func hocket_collectives(machine C.int64_t, options *C.char, e **C.char) (handle C.int64_t) {
	guarded(e, func() error {
		h, err := library.Collectives(context.Background(), int64(machine), text(options))
		handle = C.int64_t(h)
		return err
	})
	return handle
}

// hocket_do gives a stream a collective, which it does not wait for; 0 where it fails. op, red and dtype are numbers
// of hocket.h.
//
//export hocket_do
func hocket_do(collectives C.int64_t, op, red, dtype, root C.int, count C.int64_t, stream, in, out C.uint64_t,
	e **C.char) C.int {
	return truth(guarded(e, func() error {
		return library.Do(int64(collectives),
			capi.Call{Op: int(op), Red: int(red), DType: int(dtype), Root: int(root), Count: int64(count),
				Stream: uintptr(stream), In: uintptr(in), Out: uintptr(out)})
	}))
}

// hocket_do_norm gives a stream an all_reduce, an add and an rms_norm, as one kernel or two; 0 where it fails, also
// where there is no such kernel.
//
//export hocket_do_norm
func hocket_do_norm(collectives C.int64_t, dtype C.int, rows, width C.int64_t, eps C.double, stream, in, residual,
	weight, sum, out C.uint64_t, e **C.char) C.int {
	return truth(guarded(e, func() error {
		return library.DoNorm(int64(collectives),
			capi.NormCall{DType: int(dtype), Rows: int64(rows), Width: int64(width), Eps: float64(eps),
				Stream: uintptr(stream), In: uintptr(in), Residual: uintptr(residual), Weight: uintptr(weight),
				Sum: uintptr(sum), Out: uintptr(out)})
	}))
}

// hocket_device returns the number of the GPU that collectives work on, in this process; -1 where it fails.
//
//export hocket_device
func hocket_device(collectives C.int64_t, e **C.char) (gpu C.int) {
	if !guarded(e, func() error {
		n, err := library.Device(int64(collectives))
		gpu = C.int(n)
		return err
	}) {
		return -1
	}
	return gpu
}

// hocket_empty takes memory for operands on all ranks and returns its address; 0 where it fails.
//
//export hocket_empty
func hocket_empty(collectives, bytes C.int64_t, e **C.char) (address C.uint64_t) {
	guarded(e, func() error {
		at, err := library.Empty(int64(collectives), int64(bytes))
		address = C.uint64_t(at)
		return err
	})
	return address
}

// hocket_adopt has collectives use memory of the caller's without copies: so many bytes on every rank, at these
// addresses, by rank, at which this process's GPU reaches them; all processes do so at the same time. 0 where it fails.
//
//export hocket_adopt
func hocket_adopt(collectives C.int64_t, owner unsafe.Pointer, at *C.uint64_t, ranks, bytes C.int64_t,
	e **C.char) C.int {
	return truth(guarded(e, func() error {
		lent := lend(owner)
		defer lent.End()
		if ranks < 0 || ranks > most || ranks > 0 && at == nil {
			return fmt.Errorf("%w: addresses of %d ranks", hocket.ErrInput, ranks)
		}
		var list []uintptr
		for _, a := range unsafe.Slice(at, ranks) {
			list = append(list, uintptr(a))
		}
		return library.Adopt(int64(collectives), lent, list, int64(bytes))
	}))
}

// hocket_calling names the call of the caller's that the next function is for, and its place, such as a file and a
// line: other processes have both in their errors. They need not be the same in all processes.
//
//export hocket_calling
func hocket_calling(call, place *C.char) {
	library.Calling(uintptr(C.own_thread()), text(call), text(place))
}

// hocket_failed reports to the other processes of a machine why this one is about to leave; it returns 0 on failure.
//
//export hocket_failed
func hocket_failed(machine C.int64_t, why *C.char, e **C.char) C.int {
	return truth(guarded(e, func() error { return library.Failed(int64(machine), text(why)) }))
}

// hocket_check returns 1 while collectives can be relied on; 0, and why, when they cannot.
//
//export hocket_check
func hocket_check(collectives C.int64_t, e **C.char) C.int {
	return truth(guarded(e, func() error { return library.Check(int64(collectives)) }))
}

// hocket_prepare begins to load what runs of a model for dims want, {NAME: N}, and returns a number to wait for as a
// run's; 0 where it fails.
//
//export hocket_prepare
func hocket_prepare(model C.int64_t, dims *C.char, e **C.char) (ticket C.int64_t) {
	guarded(e, func() error {
		h, err := library.Prepare(int64(model), text(dims))
		ticket = C.int64_t(h)
		return err
	})
	return ticket
}

// hocket_enqueue gives a stream one run, behind what it was given before, and returns before that has ended; 0 where it
// fails. The data of tensors are addresses in memory of their rank's GPU, and tensors blocks of the one rank of this
// process. dims are {NAME: N}, those that load did not fix. While the stream is captured the run becomes part of its
// graph. A result whose data is NULL, with 0 bytes, is one of hocket_lendable: it gets the address in the model's own
// memory, where the result stays until the model's next run for the same dims.
//
//export hocket_enqueue
func hocket_enqueue(model C.int64_t, stream C.uint64_t, in *C.hocket_tensor, ins C.int64_t, out *C.hocket_tensor,
	outs C.int64_t, dims *C.char, e **C.char) C.int {
	return truth(guarded(e, func() error {
		given, err := placed(in, ins)
		results, oerr := placed(out, outs)
		if err = errors.Join(err, oerr); err != nil {
			return err
		}
		if err := library.Enqueue(int64(model), uintptr(stream), given, results, text(dims)); err != nil {
			return err
		}
		list := unsafe.Slice(out, outs)
		for i := range list {
			if list[i].data == nil {
				*(*uintptr)(unsafe.Pointer(&list[i].data)) = results[i].Address
			}
		}
		return nil
	}))
}

// hocket_lendable returns, as a JSON list, the names of the results that runs of a model for dims, {NAME: N}, can lend;
// NULL where it fails. It loads what these runs want.
//
//export hocket_lendable
func hocket_lendable(model C.int64_t, dims *C.char, e **C.char) (names *C.char) {
	guarded(e, func() error {
		out, err := library.Lendable(int64(model), text(dims))
		if err == nil {
			names = C.CString(out)
		}
		return err
	})
	return names
}

// hocket_bind_device sets a parameter for all runs to come to a block in memory of its rank's GPU, which must stay
// there and whose contents must be there; without data it takes that back. 0 where it fails.
//
//export hocket_bind_device
func hocket_bind_device(model C.int64_t, owner unsafe.Pointer, t *C.hocket_tensor, dims *C.char,
	e **C.char) C.int {
	return truth(guarded(e, func() error {
		lent := lend(owner)
		defer lent.End()
		all, err := placed(t, 1)
		if err != nil {
			return err
		}
		return library.BindDevice(int64(model), lent, all[0], text(dims))
	}))
}

// hocket_sync begins to wait for enqueued runs of a model, and returns a number to wait for as a run's, which fails as
// they did; 0 where it fails.
//
//export hocket_sync
func hocket_sync(model C.int64_t, e **C.char) (ticket C.int64_t) {
	guarded(e, func() error {
		h, err := library.Sync(int64(model))
		ticket = C.int64_t(h)
		return err
	})
	return ticket
}

// hocket_foreign makes a model ready to be called by XLA, as hocket_xla: {"ranks": N, "in": [PARAMETER, …], "out":
// [RESULT, …]} has the order of a call's buffers. 0 where it fails.
//
//export hocket_foreign
func hocket_foreign(model C.int64_t, options *C.char, e **C.char) (foreign C.int64_t) {
	guarded(e, func() error {
		h, err := library.Foreign(int64(model), text(options))
		foreign = C.int64_t(h)
		return err
	})
	return foreign
}

// hocket_call_foreign gives the stream of a rank, which is the number of its device, its part of one run, on blocks at
// these addresses, and returns before that has ended; 0 where it fails. It waits for the calls of the other ranks.
//
//export hocket_call_foreign
func hocket_call_foreign(foreign C.int64_t, rank C.int, stream C.uint64_t, in *C.uint64_t, ins C.int64_t,
	out *C.uint64_t, outs C.int64_t, e **C.char) C.int {
	return truth(guarded(e, func() error {
		if ins < 0 || ins > most || outs < 0 || outs > most {
			return fmt.Errorf("%w: %d and %d buffers", hocket.ErrInput, ins, outs)
		}
		return library.CallForeign(int64(foreign), int(rank), uintptr(stream), addressesAt(in, ins), addressesAt(out, outs))
	}))
}

func addressesAt(at *C.uint64_t, n C.int64_t) []uintptr {
	list := make([]uintptr, n)
	for i, a := range unsafe.Slice(at, n) {
		list[i] = uintptr(a)
	}
	return list
}

// hocket_close closes a model, collectives or a machine.
//
//export hocket_close
func hocket_close(object C.int64_t, e **C.char) C.int {
	return truth(guarded(e, func() error { return library.Close(int64(object)) }))
}

func truth(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// most bounds counts that no caller means.
const most = 1 << 20

func tensors(at *C.hocket_tensor, n C.int64_t) ([]capi.Tensor, error) {
	blocks, err := placed(at, n)
	if err != nil {
		return nil, err
	}
	list := make([]capi.Tensor, n)
	for i, t := range unsafe.Slice(at, n) {
		b := &blocks[i]
		list[i] = capi.Tensor{Name: b.Name, Rank: b.Rank, DType: b.DType, Shape: b.Shape}
		switch {
		case t.data == nil:
		case t.bytes == 0:
			list[i].Data = []byte{}
		default:
			list[i].Data = unsafe.Slice((*byte)(t.data), t.bytes)
		}
	}
	return list, nil
}

// placed reads tensors, wherever they are.
func placed(at *C.hocket_tensor, n C.int64_t) ([]capi.Placed, error) {
	if n < 0 || n > most || n > 0 && at == nil {
		return nil, fmt.Errorf("%w: %d tensors", hocket.ErrInput, n)
	}
	list := make([]capi.Placed, n)
	for i, t := range unsafe.Slice(at, n) {
		x := capi.Placed{Name: text(t.name), Rank: int(t.rank), DType: text(t.dtype), Address: uintptr(t.data)}
		if t.dims < 0 || t.dims > 64 || t.dims > 0 && t.shape == nil || t.bytes < 0 || t.bytes > 0 && t.data == nil {
			return nil, fmt.Errorf("%w: %s has %d dimensions and %d bytes", hocket.ErrInput, x.Name, t.dims, t.bytes)
		}
		for _, e := range unsafe.Slice(t.shape, t.dims) {
			x.Shape = append(x.Shape, int64(e))
		}
		list[i] = x
	}
	return list, nil
}
