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
	"runtime/debug"
	"sync"
	"time"
	"unsafe"

	"hocket.example/hocket"
	_ "hocket.example/hocket/cuda"
	"hocket.example/hocket/internal/capi"
	"hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/laps"
	"hocket.example/hocket/internal/release"
)

var library = capi.New()

func init() { library.Thread = func() uintptr { return uintptr(C.own_thread()) } }

// program is what main runs if libhocket is built as a program and not as a shared library; see
// python.go.
var program = func() {}

func main() { program() }

// fail stores the text of an error for the caller.
func fail(err error, to **C.char) {
	if err != nil && to != nil {
		*to = C.CString(capi.Describe(err))
	}
}

// guarded converts a panic to an error, since no panic may leave the library. The thread keeps the CUDA context that
// its caller has made current.
func guarded(to **C.char, do func() error) (ok bool) {
	defer process.Keep()()
	return reported(to, do)
}

// reported is like guarded, for functions that restore the thread's context themselves.
func reported(to **C.char, do func() error) (ok bool) {
	err := caught(do)
	fail(err, to)
	return err == nil
}

func caught(do func() error) (err error) {
	returned := false
	defer func() {
		switch p := recover(); {
		case p != nil:
			err = fmt.Errorf("a fault of hocket, please report it: %v\n%s", p, debug.Stack())
		case !returned:
			// A call of the driver has returned after its world was given up, which ends the goroutine (see
			// nvlib.Watch). The goroutine of a C thread cannot end.
			select {}
		}
	}()
	err = do()
	returned = true
	return err
}

// aside calls the function do in another goroutine, and therefore on a thread that Go created. It is for functions
// that may make the process's first CUDA calls, because guarded cannot save the caller's context before these.
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

// hocket_build returns the version of hocket, with the commit if it is known: 0.1.0+703982d6abcd. The text must not be
// freed.
//
//export hocket_build
func hocket_build() *C.char { return build() }

var build = sync.OnceValue(func() *C.char { return C.CString(release.This().String()) })

// hocket_free frees text that the library returned.
//
//export hocket_free
func hocket_free(s *C.char) { C.free(unsafe.Pointer(s)) }

// hocket_open opens a machine, and joins the other processes that a launcher started. It returns 0 on failure. It sets
// *who to {"rank": …, "size": …}, and with several processes on GPUs "exchange", the way in which they exchange data.
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

// hocket_group opens a machine for some of the processes of another machine: {"name": …, "ranks": […], "alike": …}. It
// returns 0 on failure, and in processes that are not in the group, whose rank is -1. If alike is true, all processes
// of the machine call it, including those that are not in the group. It sets *who as hocket_open does.
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

// hocket_load loads a program on a machine. The program is a text, or the torch.export archive that the option export
// names. It returns 0 on failure.
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

// hocket_layouts returns, as JSON, how the parameters and results of a model are distributed over the ranks, for
// {"dims": {NAME: N}, "shapes": {PARAMETER: [N, …]}}. It returns NULL on failure.
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

// hocket_parameters returns the names of a model's parameters as a JSON list, or NULL on failure.
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

// hocket_description returns, as JSON, a model's program ("text"), its inout parameters ("states") and, if prove is not
// 0, the verdict on its plan ("proof": "proved" or "unknown"). If hocket_load loaded the model with the option export,
// it also returns the parameters that every call must pass ("inputs"), the names of the weights from which each other
// parameter is made ("weights"), and the tensors of the option weights that the model does not use ("unused"). It
// returns NULL on failure.
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

// hocket_plan_stats returns, as JSON, the counters of the plan cache of a model's machine: hits, misses, reloads and
// evictions, the number of loaded plans, and the bytes that they hold. It returns NULL on failure.
//
//export hocket_plan_stats
func hocket_plan_stats(model C.int64_t, e **C.char) (stats *C.char) {
	guarded(e, func() error {
		out, err := library.PlanStats(int64(model))
		if err == nil {
			stats = C.CString(out)
		}
		return err
	})
	return stats
}

// hocket_gradient returns, as JSON, the gradient of a model's function with respect to parameters as two programs, for
// {"wrt": [PARAMETER, …], "keep": "all", "auto" or "inputs"}. "forward" has the parameters of the function. It returns
// the function's results, whose number is "results", followed by the values that "backward" reads. "backward" returns
// the gradients of the parameters, in their order. "takes" describes the parameters of "backward", in their order:
// {"of": "input", "output" or "gradient", "index": N}; "output" is a result of "forward", and "gradient" the gradient
// of a result. It returns NULL on failure.
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

// hocket_reset restores the states of a model to the values in the archive. hocket_load must have loaded the model with
// the option export. It waits for runs in progress. It returns 0 on failure.
//
//export hocket_reset
func hocket_reset(model C.int64_t, e **C.char) C.int {
	return truth(guarded(e, func() error { return library.Reset(context.Background(), int64(model)) }))
}

// hocket_compare begins to compare a model with its reference, on the arguments in and the bound parameters. It returns
// a number for hocket_wait, or 0 on failure. States are not changed.
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

// hocket_comparison returns the model's comparison that ended last, as JSON, or NULL on failure.
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

// lend returns the loan of a call. The loan ends with the call, unless work that the call has started still uses the
// memory.
func lend(owner unsafe.Pointer) *capi.Loan { return library.Lend(uintptr(owner)) }

// hocket_ended returns an owner whose memory the library no longer uses. It returns each owner once for each call to
// which it was passed, and NULL if there is none.
//
//export hocket_ended
func hocket_ended() unsafe.Pointer {
	owner := library.Ended()
	return *(*unsafe.Pointer)(unsafe.Pointer(&owner))
}

// hocket_bind binds a parameter for all later runs. A tensor without data removes the binding. It returns 0 on failure.
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

// hocket_bind_from binds weights from a checkpoint to parameters of a model, for all later runs. of is JSON: {"path":
// FILE or FOLDER, "rules": [{"param": …, "from": […], "transpose": …, "axis": …, "lo": …, "hi": …, "cast": …}, …],
// "inputs": […]}. It returns {"bound": […], "unused": […]}, or NULL on failure.
//
//export hocket_bind_from
func hocket_bind_from(model C.int64_t, of *C.char, e **C.char) (loaded *C.char) {
	guarded(e, func() error {
		out, err := library.BindFrom(int64(model), text(of))
		if err == nil {
			loaded = C.CString(out)
		}
		return err
	})
	return loaded
}

// hocket_run begins a run and returns its number, with which hocket_wait must be called, or 0 on failure. dims is a
// JSON object with the dims that neither the model nor shapes fix. An inout parameter that is in both in and out is
// updated in that memory after the run has succeeded.
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

// hocket_wait waits for a run for at most the given number of milliseconds. It returns 0 if the run is still in
// progress, 1 if it has succeeded, and -1 if it has failed.
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

// hocket_cancel makes a run end soon. The caller must still call hocket_wait for it.
//
//export hocket_cancel
func hocket_cancel(run C.int64_t, e **C.char) C.int {
	return truth(guarded(e, func() error { return library.Cancel(int64(run)) }))
}

// hocket_abandon cancels a run without waiting for it. The run's number becomes invalid. It returns 0 on failure.
//
//export hocket_abandon
func hocket_abandon(run C.int64_t, e **C.char) C.int {
	return truth(guarded(e, func() error { return library.Abandon(int64(run)) }))
}

// hocket_collectives prepares a machine with one rank in each process for collectives on the caller's memory and
// streams. It returns 0 on failure.
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

// hocket_laps returns, as JSON, a list of the phases of the hocket_enqueue calls since it was last called with on=1:
// the phase's name, the number of calls, and the median and the 90th percentile of its time on the host in µs. If on
// is 1, it begins to measure; otherwise it stops.
//
//export hocket_laps
func hocket_laps(on C.int, e **C.char) (phases *C.char) {
	guarded(e, func() error {
		out, err := json.Marshal(laps.Stop())
		if err == nil {
			phases = C.CString(string(out))
		}
		if on != 0 {
			laps.Start()
		}
		return err
	})
	return phases
}

// hocket_do enqueues a collective on a stream and does not wait for it. It returns 0 on failure. op, red and dtype are
// constants of hocket.h.
//
//export hocket_do
func hocket_do(collectives C.int64_t, op, red, dtype, root C.int, count C.int64_t, stream, in, out C.uint64_t,
	e **C.char) C.int {
	return truth(reported(e, func() error {
		return library.Do(int64(collectives),
			capi.Call{Op: int(op), Red: int(red), DType: int(dtype), Root: int(root), Count: int64(count),
				Stream: uintptr(stream), In: uintptr(in), Out: uintptr(out)})
	}))
}

// hocket_do_norm enqueues an all_reduce, an add and an rms_norm on a stream, as one kernel or two. It returns 0 on
// failure, also if there is no such kernel.
//
//export hocket_do_norm
func hocket_do_norm(collectives C.int64_t, dtype C.int, rows, width C.int64_t, eps C.double, stream, in, residual,
	weight, sum, out C.uint64_t, e **C.char) C.int {
	return truth(reported(e, func() error {
		return library.DoNorm(int64(collectives),
			capi.NormCall{DType: int(dtype), Rows: int64(rows), Width: int64(width), Eps: float64(eps),
				Stream: uintptr(stream), In: uintptr(in), Residual: uintptr(residual), Weight: uintptr(weight),
				Sum: uintptr(sum), Out: uintptr(out)})
	}))
}

// hocket_device returns the number, in this process, of the GPU on which collectives run, or -1 on failure.
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

// hocket_empty allocates memory for operands on all ranks and returns its address, or 0 on failure.
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

// hocket_adopt lets collectives use the caller's memory without copies. The memory has the same number of bytes on
// every rank. at is indexed by rank and holds the addresses at which this process's GPU can access the memory. All
// processes call it at the same time. It returns 0 on failure.
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

// hocket_calling describes the caller's call during which the next function is called, and its position, such as a
// file and a line. Errors in other processes contain both. They may differ between processes.
//
//export hocket_calling
func hocket_calling(call, place *C.char) {
	library.Calling(text(call), text(place))
}

// hocket_failed reports to the other processes of a machine the reason why this process will leave. It returns 0 on
// failure.
//
//export hocket_failed
func hocket_failed(machine C.int64_t, why *C.char, e **C.char) C.int {
	return truth(guarded(e, func() error { return library.Failed(int64(machine), text(why)) }))
}

// hocket_check returns 1 if the results of collectives can be relied on. Otherwise it returns 0 and the reason.
//
//export hocket_check
func hocket_check(collectives C.int64_t, e **C.char) C.int {
	return truth(guarded(e, func() error { return library.Check(int64(collectives)) }))
}

// hocket_prepare begins to load the plan and weights for runs of a model with the dims {NAME: N}. It returns a number
// for hocket_wait, or 0 on failure.
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

// hocket_form prepares runs of a model on tensors with the names, ranks, types and shapes of in and out, whose data is
// ignored. Tensors are blocks of the only rank of this process. dims has the dims {NAME: N} that hocket_load did not
// fix. It returns a number for hocket_enqueue, which hocket_close closes, or 0 on failure.
//
//export hocket_form
func hocket_form(model C.int64_t, in *C.hocket_tensor, ins C.int64_t, out *C.hocket_tensor, outs C.int64_t,
	dims *C.char, e **C.char) (form C.int64_t) {
	guarded(e, func() error {
		given, err := placed(in, ins)
		results, oerr := placed(out, outs)
		if err = errors.Join(err, oerr); err != nil {
			return err
		}
		n, err := library.Form(int64(model), given, results, text(dims))
		form = C.int64_t(n)
		return err
	})
	return form
}

// hocket_enqueue adds one run to a stream, after earlier work on the stream, and returns before the run has ended. It
// returns 0 on failure. at has the n addresses of the form's tensors in the memory of their rank's GPU, first of in and
// then of out. While the stream is being captured, the run becomes part of the graph. A result whose address is 0 must
// be one that hocket_lendable lists. Its address is set to that in the model's own memory, where the result stays until
// the model's next run with the same dims. The calling thread makes the driver's calls, as in other libraries: if one
// of them never returns, neither does hocket_enqueue. place is the position of the call, as for hocket_calling; NULL if
// it is that of the form's previous run.
//
//export hocket_enqueue
func hocket_enqueue(form C.int64_t, stream C.uint64_t, at *C.uint64_t, n C.int64_t, place *C.char, e **C.char) C.int {
	return truth(guarded(e, func() error {
		if n < 0 || n > most || n > 0 && at == nil {
			return fmt.Errorf("%w: %d addresses", hocket.ErrInput, n)
		}
		return library.Enqueue(int64(form), uintptr(stream), unsafe.Slice((*uintptr)(unsafe.Pointer(at)), n),
			text(place))
	}))
}

// hocket_lendable returns, as a JSON list, the names of the results that runs of a model with the dims {NAME: N} can
// lend, or NULL on failure. It loads the plan for these runs.
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

// hocket_bind_device binds a parameter for all later runs to a block in the memory of its rank's GPU. The memory must
// stay allocated, and must already contain the parameter. A tensor without data removes the binding. It returns 0 on
// failure.
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

// hocket_sync begins to wait for the enqueued runs of a model. It returns a number for hocket_wait, which returns the
// errors of these runs, or 0 on failure.
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

// hocket_foreign prepares a model to be called by XLA through hocket_xla. {"ranks": N, "in": [PARAMETER, …], "out":
// [RESULT, …]} has the order of the buffers in a call. It returns 0 on failure.
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

// hocket_call_foreign enqueues a rank's part of one run on the rank's stream, with blocks at the given addresses, and
// returns before the run has ended. The rank is the number of the stream's device. It waits for the calls of the other
// ranks. It returns 0 on failure.
//
//export hocket_call_foreign
func hocket_call_foreign(foreign C.int64_t, rank C.int, stream C.uint64_t, in *C.uint64_t, ins C.int64_t,
	out *C.uint64_t, outs C.int64_t, e **C.char) C.int {
	return truth(guarded(e, func() error {
		if ins < 0 || ins > most || outs < 0 || outs > most {
			return fmt.Errorf("%w: %d and %d buffers", hocket.ErrInput, ins, outs)
		}
		return library.CallForeign(int64(foreign), int(rank), uintptr(stream), addressesAt(in, ins),
			addressesAt(out, outs))
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

// most is the largest count that is accepted. A larger count is assumed to be an error of the caller.
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

// placed converts tensors whose data may be in any memory, such as a GPU's.
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
